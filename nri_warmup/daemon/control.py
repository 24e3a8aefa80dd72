"""The control socket: JSON lines over a unix socket, root only.

``{"v":1,"op":"status"}`` -> any number of progress lines -> one last line with ``"done":true``. The peer is checked by
SO_PEERCRED, not by the socket's mode alone. One request a line; a connection may send several, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from nri_warmup.daemon import logs

VERSION = 1
MAX_LINE_BYTES = 2 << 20
"""A hook sends the runtime's whole state, annotations and all."""
_MAX_CLIENTS = 1024
_IDLE_S = 30.0

Message = dict[str, Any]
Operation = Callable[[Message], AsyncIterator[Message]]
"""Takes the request; yields progress messages; the last one holds ``"done": True``."""


class ControlServer:
    """Serves ``operations`` (op name -> Operation) to root on ``path``."""

    def __init__(self, path: str, operations: dict[str, Operation]) -> None:
        self._path = path
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Raises OSError where the socket cannot be made; a socket that another daemon serves is not taken away."""
        if await _answers(self._path):
            raise OSError(
                f"{self._path}: another nri-warmup answers there; stop it, or choose another --control-socket"
            )
        if Path(self._path).exists() and not Path(self._path).is_socket():
            raise OSError(f"{self._path}: is not a socket; not replaced")
        Path(self._path).unlink(missing_ok=True)
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        old = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=MAX_LINE_BYTES, backlog=512)
        finally:
            os.umask(old)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._clients):
                writer.close()
            Path(self._path).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) >= _MAX_CLIENTS or not _is_root(writer):
            writer.close()
            return
        self._clients.add(writer)
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    line = await reader.readline()
                if not line:
                    return
                await self._answer(line, writer)
        except (ConnectionError, TimeoutError, ValueError):
            pass
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request is a JSON object")
        except (ValueError, RecursionError) as error:
            await _send(writer, {"done": True, "error": f"not a request: {error}"})
            return
        operation = self._operations.get(str(request.get("op")))
        if request.get("v") != VERSION or operation is None:
            known = ", ".join(sorted(self._operations))
            await _send(writer, {"done": True, "error": f"this is version {VERSION} with the operations {known}"})
            return
        async with contextlib.aclosing(operation(request)) as messages:  # type: ignore[type-var]
            async for message in messages:
                await _send(writer, message)


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode() + b"\n")
    await writer.drain()


async def _answers(path: str) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 1.0)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _is_root(writer: asyncio.StreamWriter) -> bool:
    sock = writer.get_extra_info("socket")
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    if uid not in (0, os.geteuid()):
        logs.warning("control socket refused a client", pid=pid, uid=uid)
        return False
    return True


def request(path: str, message: Message, *, timeout_s: float = 10.0) -> Message:
    """One request from a command: sends it and gives the last message. OSError where nobody answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect(path)
        sock.sendall(json.dumps({"v": VERSION, **message}).encode() + b"\n")
        with sock.makefile("rb") as stream:
            for line in stream:
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("done"):
                    return answer
    raise ConnectionResetError(f"{path}: the daemon closed the connection without an answer")
