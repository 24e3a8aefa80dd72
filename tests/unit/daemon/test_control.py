"""The control socket over a real unix socket: requests, bad input, a second daemon, a peer that is not root."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.daemon.control import ControlServer, Message, request
from nri_warmup.observe.exporter import Exporter


async def _echo(message: Message) -> AsyncIterator[Message]:
    yield {"progress": 1}
    yield {"done": True, "echo": message.get("text")}


async def _serving(path: str, use: Callable[[], Any]) -> Any:
    server = ControlServer(path, {"echo": _echo})
    await server.start()
    try:
        return await asyncio.get_running_loop().run_in_executor(None, use)
    finally:
        await server.close()


def _raw(path: str, data: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(path)
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return [json.loads(line) for line in sock.makefile("rb")]


def test_a_request_gets_progress_and_an_answer(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    answer = asyncio.run(_serving(path, lambda: request(path, {"op": "echo", "text": "x"})))
    assert answer == {"v": 1, "done": True, "echo": "x"}
    assert not Path(path).exists()


def test_the_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    mode = asyncio.run(_serving(path, lambda: stat.S_IMODE(os.stat(path).st_mode)))
    assert mode == 0o600


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"nonsense\n",
        b"[1]\n",
        b'{"v":2,"op":"echo"}\n',
        b'{"v":1,"op":"nothing"}\n',
        b'{"v":1}\n',
        b"\xff\xfe\n",
    ],
)
def test_bad_requests_get_an_error_and_the_connection_lives(tmp_path: Path, line: bytes) -> None:
    path = str(tmp_path / "c.sock")
    answers = asyncio.run(_serving(path, lambda: _raw(path, line + b'{"v":1,"op":"echo","text":"y"}\n')))
    assert answers[0]["done"] and "error" in answers[0]
    assert answers[-1]["echo"] == "y"


def test_an_endless_line_ends_that_connection_only(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")

    def use() -> Any:
        try:
            _raw(path, b"x" * 200_000)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return request(path, {"op": "echo", "text": "z"})["echo"]

    assert asyncio.run(_serving(path, use)) == "z"


def test_a_second_daemon_does_not_steal_the_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")

    async def main() -> None:
        first = ControlServer(path, {"echo": _echo})
        await first.start()
        with pytest.raises(OSError, match="another nri-warmup"):
            await ControlServer(path, {}).start()
        await first.close()

    asyncio.run(main())


def test_a_dead_socket_file_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert asyncio.run(_serving(path, lambda: request(path, {"op": "echo", "text": "x"})))["echo"] == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_only_root_is_answered(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        if parent.name.startswith("pytest"):
            parent.chmod(0o755)

    def use() -> Any:
        os.chmod(path, 0o666)
        ready, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setresuid(65534, 65534, 65534)
                os.write(done, json.dumps(_raw(path, b'{"v":1,"op":"echo"}\n')).encode() or b"-")
            except OSError as error:
                os.write(done, f"refused {error}".encode())
            os._exit(0)
        os.close(done)
        os.waitpid(pid, 0)
        with open(ready, "rb") as stream:
            return stream.read()

    assert threading.active_count() >= 1
    answer = asyncio.run(_serving(path, use))
    assert answer == b"[]" or answer.startswith(b"refused"), answer


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("x")
    with pytest.raises(OSError, match="not a socket"):
        asyncio.run(ControlServer(str(path), {}).start())
    with pytest.raises(OSError, match="not a socket"):
        asyncio.run(Exporter({}).start(unix_path=str(path)))
    assert path.read_text() == "x"
