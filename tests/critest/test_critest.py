"""critest on containerd with the plugin registered: every spec that passes without the plugin passes with it.

A spec that fails beside the plugin is given one more try, alone and beside the plugin: some of critest's specs wait for
fixed times. What fails twice fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab import leftovers
from tests.lab.containerd import Containerd
from tests.lab.cri import until
from tests.lab.critest import Registry, Report, run_critest
from tests.lab.plugin import PluginProcess

SLOT = "2.4"
NONE: dict[str, Any] = {
    "profiles": {"model": {"files": ["/models/**"]}},
    "selectors": [{"profile": "model", "matchLabels": {"app": "no-pod-of-critest-has-this"}}],
}
ALL: dict[str, Any] = {
    "profiles": {"everything": {"files": ["/bin/**", "/etc/**"], "reserve": "0"}},
    "selectors": [
        {
            "profile": "everything",
            "matchExpressions": [{"key": "container", "operator": "Matches", "values": ["*"]}],
            "containers": ["*"],
        }
    ],
}


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    registry = Registry()
    try:
        yield registry.push_busybox()
    finally:
        registry.close()


@pytest.fixture(scope="module")
def runtime() -> Iterator[Containerd]:
    default = "k8s.io"  # where containerd puts pods that name no cgroup, as critest's do
    was_there = leftovers.cgroups(default)
    with Containerd(SLOT) as started:
        yield started
    if not was_there:
        until("empty cgroups", lambda: leftovers.remove_cgroups(default), 10)


@pytest.fixture(scope="module")
def baseline(runtime: Containerd, image: str) -> Report:
    report = run_critest(runtime, image)
    print(f"without the plugin: {len(report.passed)} passed, {len(report.failed)} failed in {report.seconds:.0f} s")
    for name in sorted(report.failed):
        print(f"  fails without any plugin: {name}")
    assert len(report.passed) >= 50
    return report


@pytest.mark.parametrize("config", [NONE, ALL], ids=["no-match", "all-match"])
def test_what_passes_without_passes_with(
    runtime: Containerd, image: str, baseline: Report, config: dict[str, Any]
) -> None:
    plugin = PluginProcess(runtime.nri_socket, runtime.directory / "plugin", config).start()
    try:
        report = run_critest(runtime, image)
        broken = baseline.passed - report.passed
        if broken:
            again = run_critest(runtime, image, focus=tuple(f"{re.escape(name)}$" for name in broken))
            broken -= again.passed
        status, metrics = plugin.status(), plugin.metrics()
    finally:
        plugin.stop()

    print(f"beside the plugin: {len(report.passed)} passed, {len(report.failed)} failed in {report.seconds:.0f} s")
    assert not broken, plugin.log_tail(60)
    assert status["connection"]["state"] == "registered"
    assert status["connection"]["disconnects"] == 0
    warmed = sum(count for name, count in metrics.items() if name.startswith("nri_warmup_warmups_total"))
    assert (warmed > 0) == (config is ALL), metrics
    assert runtime.left_of_pods() == []
    assert plugin.left() == []
