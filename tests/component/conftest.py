"""A real NRI runtime without containers (tests/go) on a socket of its own, and plugins beside it.

NRI_WARMUP_NRI_VERSIONS picks the library's versions: a list, or "all" released ones. Without it: those that CI builds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.go import build as go_build
from tests.go import harness
from tests.go.harness import GoRuntime, PluginProcess

HERE = Path(__file__).resolve().parent


def versions() -> list[str]:
    wanted = os.environ.get("NRI_WARMUP_NRI_VERSIONS", "")
    if wanted == "all":
        return list(go_build.RELEASED)
    return wanted.replace(",", " ").split() or list(harness.CI_VERSIONS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "nri_version" in metafunc.fixturenames:
        metafunc.parametrize("nri_version", versions(), scope="session")


class Lab:
    """Starts runtimes and plugins in one directory and ends whatever is left of them."""

    def __init__(self, version: str, directory: Path) -> None:
        self.version = version
        self.numbers = harness.numbers(version)
        self.directory = directory
        self.socket = directory / "nri.sock"
        self.log = directory / "plugin.log"
        self._open: list[GoRuntime | PluginProcess] = []

    def runtime(self, *args: str, socket: bool = True, trace: bool = True) -> GoRuntime:
        runtime = GoRuntime(self.version, self.socket if socket else None, *args, trace=trace)
        self._open.append(runtime)
        return runtime

    def probe(self, **options: Any) -> PluginProcess:
        """A process on the daemon's NRI client (or on the stub: kind="stub"); see plugin_process.py."""
        plugin = PluginProcess(self.probe_command(**options), self.log)
        self._open.append(plugin)
        return plugin

    def probe_command(self, **options: Any) -> list[str]:
        return [sys.executable, str(HERE / "plugin_process.py"), json.dumps({"socket": str(self.socket), **options})]

    def go_plugin(self, runtime: GoRuntime, *args: str) -> PluginProcess:
        plugin = harness.go_plugin(runtime, self.log, *args)
        self._open.append(plugin)
        return plugin

    def keep(self, process: PluginProcess) -> PluginProcess:
        self._open.append(process)
        return process

    def close(self) -> None:
        for process in reversed(self._open):
            process.kill()
            process.close()


@pytest.fixture
def lab(nri_version: str) -> Iterator[Lab]:
    # Not tmp_path: a socket's path holds at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="nri-"))
    lab = Lab(nri_version, directory)
    try:
        yield lab
    finally:
        lab.close()
        shutil.rmtree(directory)


@pytest.fixture
def runtime(lab: Lab) -> GoRuntime:
    return lab.runtime()
