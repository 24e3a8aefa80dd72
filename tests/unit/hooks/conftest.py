"""The hook as the runtime runs it (a process, a state on stdin, pipes), and a daemon that says what a test wants."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOOK = Path(__file__).resolve().parents[3] / "hooks" / "nri-warmup-hook"
PYTHON = "/usr/bin/python3"
STATE = {
    "ociVersion": "1.0.2",
    "id": "cafe01",
    "status": "creating",
    "pid": 4242,
    "bundle": "/run/bundles/cafe01",
    "annotations": {"pid": "1", "bundle": "/etc", "id": "evil", "done": "true"},
}


@dataclass
class Ran:
    code: int
    out: str
    err: str
    seconds: float


class FakeDaemon:
    """A unix socket and, per connection, a function that plays the daemon."""

    def __init__(self, path: Path, play: Callable[[socket.socket, bytes], None]) -> None:
        self.path = str(path)
        self.requests: list[bytes] = []
        self._play = play
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            line = b""
            while not line.endswith(b"\n"):
                piece = connection.recv(65536)
                if not piece:
                    break
                line += piece
            self.requests.append(line)
            self._play(connection, line)

    def request(self) -> dict[str, Any]:
        [line] = self.requests
        message = json.loads(line)
        assert isinstance(message, dict)
        return message

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[Callable[[socket.socket, bytes], None]], FakeDaemon]]:
    made: list[FakeDaemon] = []

    def make(play: Callable[[socket.socket, bytes], None]) -> FakeDaemon:
        made.append(FakeDaemon(tmp_path / f"control{len(made)}.sock", play))
        return made[-1]

    yield make
    for one in made:
        one.close()


def run_hook(*args: str, state: object = STATE, raw: bytes | None = None, within_s: float = 20.0) -> Ran:
    started = time.monotonic()
    process = subprocess.run(
        [str(HOOK), *args],
        input=json.dumps(state).encode() if raw is None else raw,
        capture_output=True,
        timeout=within_s,
        check=False,
        env={},
    )
    took = time.monotonic() - started
    return Ran(code=process.returncode, out=process.stdout.decode(), err=process.stderr.decode(), seconds=took)


def done(connection: socket.socket, request: bytes) -> None:
    connection.sendall(b'{"v":1,"done":true,"exit":0}\n')


def silent(connection: socket.socket, request: bytes) -> None:
    while connection.recv(4096):
        pass


def stop(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
