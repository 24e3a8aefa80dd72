"""The suite's own containerd, once for the session, and a bed on it for each test. Outside the guest all is skipped."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import APPLETS, BUSYBOX, PROBE, Bed
from tests.lab.containerd import Containerd
from tests.lab.store import probe_binary, program
from tests.vm import guest

FAILED = pytest.StashKey[bool]()
NRI_LIMITS = {"plugin_registration_timeout": "30s", "plugin_request_timeout": "20s"}
"""The runtime's own (5 and 2 seconds) are for machines that are not emulated."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "ci_guest: in the one guest that CI boots")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not guest.SUITE and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="runs inside the booted guest: make test-vm, make test-node"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        item.stash[FAILED] = True
    if report.failed and guest.SUITE:
        # At once, not at the end: a guest may die before it.
        print(f"\n{report.longreprtext}", file=sys.__stdout__, flush=True)
    return report


def add_images(runtime: Containerd) -> None:
    runtime.add_image(PROBE, {"probe": probe_binary()}, directories=["models", "sync", "tmp"])
    runtime.add_image(
        BUSYBOX,
        {"bin/busybox": program("busybox")},
        links={f"bin/{applet}": "busybox" for applet in APPLETS},
        directories=["models", "sync", "tmp"],
        config={"Env": ["PATH=/bin"]},
    )


@pytest.fixture(scope="session")
def runtime() -> Iterator[Containerd]:
    slot = {"trixie": "1.7", "forky": "2.1"}[guest.SUITE]
    subprocess.run(["modprobe", "fuse"], check=True)
    crun = program("crun")
    with Containerd(slot, handlers={"crun": crun}, nri=NRI_LIMITS, systemd_cgroup=guest.DRIVER == "systemd") as found:
        add_images(found)
        yield found
        shutil.copy(found.log, guest.OUT / "containerd.log")


@pytest.fixture
def bed(runtime: Containerd, request: pytest.FixtureRequest) -> Iterator[Bed]:
    made = Bed(runtime, Path(tempfile.mkdtemp(prefix="t", dir=runtime.directory)))
    yield made
    if request.node.stash.get(FAILED, False):
        for plugin in made.plugins:
            print(f"--- {plugin.log}\n{plugin.log_tail(60)}")
        print(f"--- {runtime.log}\n{runtime.log_tail(15)}")
    left = made.close()
    assert not left, f"left behind: {left}"
