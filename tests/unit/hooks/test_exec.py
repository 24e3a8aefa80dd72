"""The launcher of warm-up programs: bounds what it runs, tells the daemon, and never fails the container."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.daemon.programs import is_static
from tests.lab.store import program

SOURCE = Path(__file__).resolve().parents[3] / "hooks" / "nri-warmup-exec.c"


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("launcher") / "nri-warmup-exec"
    subprocess.run([program("gcc"), "-Os", "-Wall", "-Wextra", "-Werror", "-static", "-o", out, SOURCE], check=True)
    return out


class Log:
    """The daemon's end: keeps what launchers send."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.data = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while piece := connection.recv(65536):
                self.data += piece

    def lines(self) -> list[str]:
        self._thread.join(10)
        return self.data.decode().splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log.sock")
    yield made
    made._listener.close()


def run(launcher: Path, *args: str, stdin: bytes = b"{}") -> float:
    """Gives the seconds it took. Status 0 and silence are all there ever is."""
    began = time.monotonic()
    ended = subprocess.run([launcher, *args], input=stdin, capture_output=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    return time.monotonic() - began


def test_output_and_status_reach_the_log(launcher: Path, log: Log) -> None:
    run(launcher, "--log", log.path, "--", "/bin/sh", "-c", "echo one; echo two >&2; printf three")
    *out, end = log.lines()
    assert out == ["o one", "o two", "o three"]
    assert end.startswith("e exit=0 ")


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", "exit=7"), ("kill -9 $$", "signal=9"), ("exec /nonexistent", "exit=127")]
)
def test_failures_are_told_and_no_more(launcher: Path, log: Log, script: str, status: str) -> None:
    run(launcher, "--log", log.path, "--", "/bin/sh", "-c", script)
    assert log.lines()[-1].startswith(f"e {status} ")


def test_program_that_is_not_there(launcher: Path, log: Log) -> None:
    run(launcher, "--log", log.path, "--", "/nonexistent/program")
    assert log.lines()[0] == "o nri-warmup-exec: /nonexistent/program: No such file or directory"
    assert log.lines()[-1].startswith("e exit=127 ")


def test_killed_with_all_it_started_when_its_time_is_over(launcher: Path, log: Log, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"(sleep 1.5; touch {mark}) & echo started; sleep 60"
    assert run(launcher, "--timeout-ms", "400", "--log", log.path, "--", "/bin/sh", "-c", script) < 5
    assert log.lines()[0] == "o started" and log.lines()[-1].startswith("e timeout ")
    time.sleep(1.5)
    assert not mark.exists()


def test_child_that_holds_the_output_does_not_hold_the_container(launcher: Path, log: Log) -> None:
    assert run(launcher, "--timeout-ms", "20000", "--log", log.path, "--", "/bin/sh", "-c", "sleep 60 & echo x") < 5
    assert log.lines()[0] == "o x"


def test_without_a_daemon_it_runs_all_the_same(launcher: Path, tmp_path: Path) -> None:
    run(launcher, "--log", str(tmp_path / "none.sock"), "--", "/bin/sh", "-c", f"touch {tmp_path}/ran")
    run(launcher, "--", "/bin/sh", "-c", f"touch {tmp_path}/ran-too")
    assert (tmp_path / "ran").exists() and (tmp_path / "ran-too").exists()


def test_daemon_that_does_not_read_loses_output_and_holds_nobody(launcher: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        script = "i=0; while [ $i -lt 5000 ]; do echo 'a line of a program that says very much'; i=$((i+1)); done"
        assert run(launcher, "--log", str(path), "--", "/bin/sh", "-c", script) < 20


def test_much_output_is_cut(launcher: Path, log: Log) -> None:
    run(launcher, "--log", log.path, "--", "/bin/sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end")
    lines = log.lines()
    assert sum(map(len, lines)) < 70_000
    assert lines[-1].startswith("e exit=0 ")


def test_bound_for_its_time_only(launcher: Path, log: Log) -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    script = "grep Cpus_allowed_list /proc/self/status; grep -c bind /proc/self/numa_maps || true"
    run(launcher, "--log", log.path, "--cpus", cpu, "--", "/bin/sh", "-c", script)
    assert log.lines()[0].split() == ["o", "Cpus_allowed_list:", cpu]


@pytest.mark.parametrize("what", ["--cpus", "--nodes"])
@pytest.mark.parametrize("value", ["x", "3-1", "1-", "5000", "1000-1023"])
def test_binding_that_is_refused_is_said_and_no_more(launcher: Path, log: Log, what: str, value: str) -> None:
    run(launcher, "--log", log.path, what, value, "--", "/bin/echo", "ran")
    lines = log.lines()
    assert lines[0].startswith("o nri-warmup-exec: not bound to its ") and lines[1] == "o ran"


@pytest.mark.parametrize(
    "args", [(), ("--",), ("--timeout-ms",), ("--log", "x" * 500, "--", "/bin/true"), ("nonsense",)]
)
def test_arguments_that_make_no_sense(launcher: Path, args: tuple[str, ...]) -> None:
    run(launcher, *args)


def test_stdin_is_read_to_its_end_and_not_the_programs(launcher: Path, log: Log) -> None:
    run(launcher, "--log", log.path, "--", "/bin/sh", "-c", "wc -c", stdin=b"x" * 300_000)
    assert log.lines()[0] == "o 0"


def test_needs_no_loader_of_the_image(launcher: Path) -> None:
    assert is_static(str(launcher))
    assert not is_static("/bin/sh") and not is_static(str(SOURCE)) and not is_static("/nonexistent")
