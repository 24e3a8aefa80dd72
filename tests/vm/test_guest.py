"""The guest is what it is said to be; without this, what the other tests show is worth little."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.lab.store import ROOT
from tests.vm import guest

pytestmark = pytest.mark.ci_guest


def test_cgroup_v2_only_with_its_controllers() -> None:
    kinds = {line.split(" - ")[1].split()[0] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    assert "cgroup2" in kinds and "cgroup" not in kinds
    assert {"cpuset", "cpu", "io", "memory", "hugetlb", "pids"} <= set(
        (guest.CGROUPS / "cgroup.controllers").read_text().split()
    )


def test_pressure_and_swap() -> None:
    assert Path("/proc/pressure/memory").read_text().startswith("some avg10=")
    assert len(Path("/proc/swaps").read_text().splitlines()) == 2


def test_the_nodes_of_the_topology() -> None:
    layout = tomllib.loads((ROOT / "tests/lab/vm/topologies.toml").read_text())[guest.TOPOLOGY]
    assert guest.nodes() == list(range(len(layout["nodes"])))
    for number, node in enumerate(layout["nodes"]):
        where = guest.NODES / f"node{number}"
        assert (where / "cpulist").read_text().strip() == node.get("cpus", "")
        assert list(map(int, (where / "distance").read_text().split())) == layout["distances"][number]
        total = next(line for line in (where / "meminfo").read_text().splitlines() if "MemTotal" in line)
        assert int(total.split()[3]) >> 10 == pytest.approx(node["memory_mib"], rel=0.15)


def test_systemd_is_the_first_process_and_nothing_reaches_out() -> None:
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    assert os.listdir("/sys/class/net") == ["lo"] or "dummy0" in os.listdir("/sys/class/net")
    assert subprocess.run(["systemctl", "is-active", "dbus"], capture_output=True, check=False).returncode == 0
