"""The verbs that need no runtime, as a person would run them: ``warm``, ``exec`` and the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_warmup.cli.demo import evict
from tests.lab import pages
from tests.lab.leftovers import processes

VERB = [sys.executable, "-m", "nri_warmup.cli.main"]
MIB = 1 << 20


@pytest.fixture
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = Path("/var/tmp") / f"nri-warmup-test-{os.getpid()}"
    directory.mkdir(exist_ok=True)
    path = directory / "model.bin"
    path.write_bytes(os.urandom(16 * MIB))
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
    evict(path)
    yield path
    path.unlink()
    directory.rmdir()


def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VERB, *arguments], capture_output=True, text=True, check=False, timeout=timeout)


def left() -> list[str]:
    """Cgroups and processes of ours."""
    found = [str(p) for p in Path("/sys/fs/cgroup").rglob("nri-warmup-exec-*")]
    return found + [p.command for p in processes() if "nri_warmup.inject" in p.command and p.parent == 1]


def test_warm_reads_a_file_and_says_so(model: Path) -> None:
    done = run("warm", str(model), "--json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["state"] == "done" and outcome["coverage"] == 1.0 and outcome["read_bytes"] == 16 * MIB
    again = json.loads(run("warm", str(model), "--json").stdout)
    assert again["read_bytes"] == 0


def test_warm_of_a_missing_file_is_partial(model: Path) -> None:
    done = run("warm", str(model), f"{model}.missing")
    assert done.returncode == 3
    assert "missing" in done.stdout


def test_warm_keeps_to_max_bytes(model: Path) -> None:
    done = run("warm", str(model), "--json", "--max-bytes", "4Mi")
    assert done.returncode == 3
    assert json.loads(done.stdout)["read_bytes"] <= 4 * MIB


def test_warm_says_when_the_cgroup_is_none(tmp_path: Path, model: Path) -> None:
    done = run("warm", str(model), "--cgroup", str(tmp_path))
    assert done.returncode == 1
    assert "not a cgroup that we can join" in done.stderr


def test_warm_charges_the_cgroup_that_is_named(model: Path) -> None:
    mount = pages.cgroup_mounts().get("memory") or pages.cgroup_mounts()[""]
    directory = mount / f"nri-warmup-test-{os.getpid()}"
    directory.mkdir()
    try:
        done = run("warm", str(model), "--cgroup", str(directory), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["charged"]
        assert pages.owners(model) == {directory.stat().st_ino: 16 * MIB // pages.PAGE}
    finally:
        directory.rmdir()


def test_exec_warms_beside_the_command_and_charges_it(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    script = f"while [ ! -e {report} ]; do sleep 0.02; done; exit 7"
    done = run("exec", "--file", str(model), "--report", str(report), "--", "sh", "-c", script)
    assert done.returncode == 7, done.stderr
    outcome = json.loads(report.read_text())
    assert outcome["state"] == "done" and outcome["coverage"] == 1.0
    assert outcome["charged"] and outcome["owned"] >= 0.99
    assert left() == []


def test_exec_with_gate_hook_holds_the_command_until_it_is_warm(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("exec", "--gate", "hook", "--file", str(model), "--report", str(report), "--", "cat", str(report))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["coverage"] == 1.0


def test_exec_runs_a_command_that_asks_for_nothing() -> None:
    done = run("exec", "--", "sh", "-c", "echo out; exit 3")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert left() == []


def test_exec_of_a_missing_command_is_127() -> None:
    assert run("exec", "--", "/does/not/exist").returncode == 127


def test_exec_passes_a_signal_on(model: Path) -> None:
    process = subprocess.Popen(
        [*VERB, "exec", "--file", str(model), "--", "sh", "-c", "echo up; exec sleep 60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(10) == 128 + 15
    assert left() == []


def test_exec_keeps_to_the_memory_limit(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    script = f"while [ ! -e {report} ]; do sleep 0.02; done"
    done = run(
        "exec", "--memory-limit", "80Mi", "--file", str(model), "--report", str(report), "--", "sh", "-c", script
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(report.read_text())
    assert outcome["state"] == "over-budget" and outcome["budget_bytes"] < 16 * MIB


def test_exec_dry_run_prints_the_plan(model: Path) -> None:
    done = run("exec", "--dry-run", "--file", str(model), "--", "true")
    assert done.returncode == 0 and str(model) in done.stdout


@pytest.mark.parametrize("runtime", ["exec", "containerd", "runc", "crun"])
def test_the_demo_ends_with_a_line_of_json(runtime: str) -> None:
    done = run("demo", "--runtime", runtime, "--rounds", "1", "--size", "32Mi", timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["major_faults_warm"] == 0 and result["coverage"] == 1.0 and result["owned"] >= 0.99
    assert result["runtime"].startswith(runtime)
    assert result["major_faults_cold"] > 0
    assert left() == []
