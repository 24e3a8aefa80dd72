"""``nri-warmup exec`` and ``warm --cgroup`` on cgroup v2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.bed import MIB
from tests.lab import pages
from tests.vm import guest

pytestmark = pytest.mark.ci_guest
SIZE = 32 * MIB


@pytest.fixture
def model() -> Iterator[Path]:
    directory = Path("/var/tmp/nri-warmup-verbs")
    yield pages.make_model(directory / "model.bin", SIZE)
    (directory / "model.bin").unlink()


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An internal node that hands the memory controller on, with one leaf."""
    top = guest.CGROUPS / f"nri-warmup-verbs-{os.getpid()}"
    leaf = top / "leaf"
    leaf.mkdir(parents=True)
    (top / "cgroup.subtree_control").write_text("+memory")
    yield leaf
    leaf.rmdir()
    top.rmdir()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nri_warmup.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_exec_charges_its_command(model: Path, tmp_path: Path) -> None:
    report, where = tmp_path / "report.json", tmp_path / "cgroup"
    script = f"while [ ! -e {report} ]; do sleep 0.1; done; cat /proc/self/cgroup > {where}; exit 7"
    done = run("exec", "--file", str(model), "--report", str(report), "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    outcome = json.loads(report.read_text())
    assert (outcome["state"], outcome["coverage"], outcome["charged"]) == ("done", 1.0, True), outcome
    assert outcome["owned"] >= 0.99
    own = where.read_text().strip()
    assert "/nri-warmup-exec-" in own
    assert not (guest.CGROUPS / own.removeprefix("0::/")).exists()


def test_exec_keeps_to_its_memory_limit(model: Path, tmp_path: Path) -> None:
    report, seen = tmp_path / "report.json", tmp_path / "seen"
    script = (
        f"while [ ! -e {report} ]; do sleep 0.1; done; d=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); "
        f"cat $d/memory.max $d/memory.events > {seen}"
    )
    limit = ["--memory-limit", "90Mi"]
    done = run("exec", *limit, "--file", str(model), "--report", str(report), "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(report.read_text())
    assert outcome["state"] == "over-budget" and 0 < outcome["read_bytes"] <= outcome["budget_bytes"] < SIZE, outcome
    first, *events = seen.read_text().splitlines()
    assert int(first) == 90 * MIB
    assert "oom_kill 0" in events and "max 0" in events


def test_warm_charges_the_cgroup_named(model: Path, cgroup: Path) -> None:
    done = run("warm", str(model), "--cgroup", str(cgroup), "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["state"], outcome["coverage"], outcome["charged"]) == ("done", 1.0, True), outcome
    assert pages.owners(model) == {cgroup.stat().st_ino: SIZE // 4096}
    assert guest.keys(cgroup / "memory.stat")["file"] >= SIZE


def test_warm_says_why_an_internal_node_cannot_be_joined(model: Path, cgroup: Path) -> None:
    done = run("warm", str(model), "--cgroup", str(cgroup.parent), "--json")
    assert done.returncode == 1
    outcome = json.loads(done.stdout)
    assert outcome["state"] == "failed" and "cgroups of its own below it" in outcome["reason"], outcome
    assert pages.resident_share(model) == 0.0


def test_warm_by_pid_charges_that_process(model: Path, cgroup: Path) -> None:
    command = ["sh", "-c", f"echo $$ > {cgroup}/cgroup.procs; echo in; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "in\n"
            done = run("warm", str(model), "--pid", str(process.pid), "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            assert pages.owners(model) == {cgroup.stat().st_ino: SIZE // 4096}
        finally:
            process.kill()
