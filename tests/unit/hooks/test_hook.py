"""The hook's contract over a real unix socket: what it says, when it ends, and that no fault fails the container."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.hooks.conftest import HOOK, STATE, FakeDaemon, Ran, done, run_hook, silent

MakeDaemon = Callable[[Callable[[socket.socket, bytes], None]], FakeDaemon]


def refused(ran: Ran) -> str:
    """With --closed: status 1, nothing on stdout, one line on stderr. Returns what it says."""
    assert ran.code == 1 and ran.out == ""
    assert ran.err.startswith("nri-warmup: not started, on_error is closed: ") and ran.err.count("\n") == 1
    return ran.err


def passed(ran: Ran) -> None:
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_says_what_the_runtime_said_and_lets_go(daemon: MakeDaemon) -> None:
    served = daemon(done)
    passed(run_hook("--id", "cafe01", "--socket", served.path, "--deadline", "10", "--closed"))
    assert served.request() == {"v": 1, "op": "gate", "id": "cafe01", "state": STATE}


def test_state_of_several_lines_is_one_line(daemon: MakeDaemon) -> None:
    """crun 1.29 and later indent theirs."""
    state = {"id": "c-1_x.y", "pid": 99, "root": 'rootfs "é\n', "bundle": "/", "annotations": {"a": '\\"\r\n\t{'}}
    served = daemon(done)
    passed(run_hook("--socket", served.path, raw=json.dumps(state, indent=2, ensure_ascii=False).encode() + b"\r\n"))
    assert served.request() == {"v": 1, "op": "gate", "id": "", "state": state}


def test_words_it_does_not_know_are_passed_over(daemon: MakeDaemon) -> None:
    served = daemon(done)
    passed(run_hook("--new-option", "x", "--id", "given", "--socket", served.path, "y", "--id"))
    assert served.request()["id"] == "given"


def test_holds_through_progress_until_done(daemon: MakeDaemon) -> None:
    let_go: list[float] = []

    def play(connection: socket.socket, request: bytes) -> None:
        for part in (b'{"v":1,"resident":1,"current":"/a\\"done\\":true"}\n{"v":', b'1,"do', b'ne":false}\n'):
            connection.sendall(part)
            time.sleep(0.1)
        let_go.append(time.monotonic())
        connection.sendall(b'{"v":1,"done":true,"exit":0,"reason":""}\n')

    passed(run_hook("--socket", daemon(play).path, "--closed"))
    assert let_go


@pytest.mark.parametrize("args", [(), ("--closed",)])
def test_daemon_absent(tmp_path: Path, args: tuple[str, ...]) -> None:
    ran = run_hook("--socket", str(tmp_path / "none.sock"), *args)
    if args:
        assert "cannot be reached" in refused(ran)
    else:
        passed(ran)


def test_daemon_hung_is_given_up_after_the_silence(daemon: MakeDaemon) -> None:
    path = daemon(silent).path
    ran = run_hook("--socket", path, "--deadline", "60", "--silence", "0.3")
    passed(ran)
    assert 0.3 <= ran.seconds < 10
    assert "no word from the daemon for 0.3 s" in refused(run_hook("--socket", path, "--silence", "0.3", "--closed"))


def test_progress_without_end_is_cut_at_the_deadline(daemon: MakeDaemon) -> None:
    def play(connection: socket.socket, request: bytes) -> None:
        while True:
            connection.sendall(b'{"v":1,"resident":1}\n')
            time.sleep(0.05)

    path = daemon(play).path
    ran = run_hook("--socket", path, "--deadline", "0.6", "--silence", "0.3")
    passed(ran)
    assert 0.6 <= ran.seconds < 10
    assert "deadline of 0.6 s" in refused(run_hook("--socket", path, "--deadline", "0.6", "--closed"))


def test_queue_of_the_socket_full(tmp_path: Path) -> None:
    """A daemon that stands still, and more hooks than its queue takes: the next one is turned away at once."""
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(8)]
        for one in waiting:
            one.setblocking(False)
            try:
                one.connect(path)
            except BlockingIOError:
                break
        else:
            pytest.fail("the queue did not fill")
        ran = run_hook("--socket", path, "--deadline", "0.4")
        passed(ran)
        assert "cannot be reached" in refused(run_hook("--socket", path, "--closed"))
        for one in waiting:
            one.close()


@pytest.mark.parametrize("how", ["closed", "never-closed", "write-only"])
def test_stdin_that_is_not_as_it_should_be(daemon: MakeDaemon, how: str) -> None:
    """fd 0 not open at all; a pipe whose writer never closes; a descriptor that cannot be read."""
    served = daemon(done)
    command = [str(HOOK), "--socket", served.path, "--deadline", "0.5"]
    reader, writer = os.pipe()
    started = time.monotonic()
    try:
        if how == "closed":
            process = subprocess.run(["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command], timeout=20, check=False)
        else:
            os.write(writer, b'{"id":"cafe01","pid":4242')
            stdin = reader if how == "never-closed" else writer
            process = subprocess.run(command, stdin=stdin, timeout=20, check=False)
    finally:
        os.close(reader)
        os.close(writer)
    assert process.returncode == 0
    assert served.requests == []
    if how == "never-closed":
        assert time.monotonic() - started >= 0.5


def test_reads_stdin_to_the_end_before_it_answers(tmp_path: Path) -> None:
    """A runtime that writes a big state must not meet a closed pipe, however little the hook cares."""
    state = {**STATE, "annotations": {f"k{i}": "v" * 1000 for i in range(6000)}}
    passed(run_hook("--socket", str(tmp_path / "none.sock"), state=state))
    assert "none.sock" in refused(run_hook("--socket", str(tmp_path / "none.sock"), "--closed", state=state))


@pytest.mark.parametrize("option", ["--deadline", "--silence"])
@pytest.mark.parametrize("value", ["", "soon", "-1", "nan", "1e400"])
def test_options_that_make_no_sense(daemon: MakeDaemon, option: str, value: str) -> None:
    path = daemon(silent).path
    passed(run_hook("--socket", path, option, value, "--deadline", "1"))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "closed the connection"),
        (b'{"v":1,"resident":3}\n', "closed the connection"),
        (b'{"v":1,"done":true', "closed the connection"),
        (b'{"v":1,"done":true,"exit":1,"reason":"file not readable"}\n', "file not readable"),
        (b'{"v":1,"done":true,"error":"this is version 2"}\n', "this is version 2"),
        (b'{"v":1,"done":true,"exit":1,"reason":"a\\nb\\u001b[31m"}\n', "a\\nb\\u001b[31m"),
        (b"\x80" * 3_000_000, "does not speak this protocol"),
        (b'{"v":1,"done":true,"exit":1,"reason":""}\n', "the warm-up failed"),
    ],
)
def test_daemon_ends_badly(daemon: MakeDaemon, answer: bytes, says: str) -> None:
    path = daemon(lambda connection, request: connection.sendall(answer)).path
    passed(run_hook("--socket", path))
    assert says in refused(run_hook("--socket", path, "--closed"))


def test_killed_by_the_runtime_leaves_nobody(daemon: MakeDaemon) -> None:
    """runc's own timeout kills the hook and then waits for its pipes: they must be free at once."""
    served = daemon(silent)
    process = subprocess.Popen(
        [str(HOOK), "--socket", served.path, "--deadline", "60", "--silence", "60"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(STATE).encode())
    process.stdin.close()
    process.stdin = None
    deadline = time.monotonic() + 10
    while not served.requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert served.requests
    process.kill()
    out, err = process.communicate(timeout=5)
    assert (out, err) == (b"", b"")


def test_a_hundred_at_once(daemon: MakeDaemon) -> None:
    served = daemon(done)
    processes = [
        subprocess.Popen([str(HOOK), "--id", f"c{i}", "--socket", served.path], stdin=subprocess.PIPE)
        for i in range(100)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(json.dumps(STATE).encode())
        process.stdin.close()
    assert [process.wait(timeout=60) for process in processes] == [0] * 100
    assert {json.loads(line)["id"] for line in served.requests} == {f"c{i}" for i in range(100)}


def test_environment_and_working_directory_do_not_reach_the_interpreter(tmp_path: Path) -> None:
    """The bundle is the working directory and the runtime's environment may be anything."""
    for name in ("posix.py", "_socket.py", "sitecustomize.py", "encodings.py"):
        (tmp_path / name).write_text("raise SystemExit(9)")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path), "LC_ALL": "xx", "LD_LIBRARY_PATH": ""}
    process = subprocess.run(
        [str(HOOK), "--socket", "/nonexistent"],
        input=json.dumps(STATE).encode(),
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, b"", b"")


def test_source_runs_on_python_3_9_and_imports_next_to_nothing() -> None:
    source = HOOK.read_text()
    assert source.startswith("#!/usr/bin/python3 -IS\n")
    tree = ast.parse(source, feature_version=(3, 9))
    imported = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert imported == {"_signal", "_socket", "posix", "sys"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Match)]
    assert os.access(HOOK, os.X_OK)
