"""Real runtimes for a session, and for each test a bed on one of them.

One containerd of each version runs for the whole session; what a test makes on it ends with the test, and nothing of it
may be left then. The plugin is a fresh process for each test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import FAULTY, Bed, Runtime, Runtimes
from tests.lab.crio import crio_binary
from tests.lab.store import SLOTS


@pytest.fixture(scope="session")
def runtimes() -> Iterator[Runtimes]:
    if os.geteuid() != 0:
        pytest.skip("container runtimes need root")
    found = Runtimes()
    yield found
    found.close()


def _bed(runtime: Runtime, request: pytest.FixtureRequest) -> Iterator[Bed]:
    # Short: the plugin's sockets are below it, and a unix socket's path has at most 107 bytes.
    bed = Bed(runtime, Path(tempfile.mkdtemp(prefix="t", dir=runtime.directory)))
    yield bed
    failed = request.node.stash.get(FAILED, False)
    if failed:
        for plugin in bed.plugins:
            print(f"--- {plugin.log}\n{plugin.log_tail(60)}")
        print(f"--- {runtime.log}\n{runtime.log_tail(15)}")
    left = bed.close()
    assert not left, f"left behind: {left}"


@pytest.fixture(params=[*SLOTS, "crio"])
def bed(request: pytest.FixtureRequest, runtimes: Runtimes) -> Iterator[Bed]:
    """On each runtime in turn."""
    if request.param == "crio" and crio_binary() is None:
        pytest.skip("no crio on PATH and none in CRIO_BIN")
    yield from _bed(runtimes.get(request.param), request)


@pytest.fixture
def faulty(request: pytest.FixtureRequest, runtimes: Runtimes) -> Iterator[Bed]:
    """On one runtime: what is broken here has nothing to do with its version."""
    yield from _bed(runtimes.get(FAULTY), request)


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    return report
