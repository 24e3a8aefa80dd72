"""A few read-only pages over HTTP/1.1 on a unix socket, and on TCP where the operator asks for it.

One request a connection, bounded in size and time, no keep-alive: enough for Prometheus, curl and a kubelet probe,
and little enough to read. Pages are functions that give (status, content type, body).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

Page = Callable[[], tuple[int, str, str]]

_MAX_REQUEST_BYTES = 8192
_TIMEOUT_S = 5.0
_MAX_CLIENTS = 64
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Exporter:
    """Serves ``pages`` (path -> Page). ``start`` raises OSError where an address cannot be had."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._servers: list[asyncio.Server] = []
        self._clients = 0
        self._unix_path: str | None = None

    async def start(self, *, unix_path: str | None, tcp: tuple[str, int] | None = None) -> None:
        if unix_path:
            await _free(unix_path)
            old = os.umask(0o117)
            try:
                self._servers.append(await asyncio.start_unix_server(self._serve, unix_path, limit=_MAX_REQUEST_BYTES))
            finally:
                os.umask(old)
            self._unix_path = unix_path
        if tcp:
            self._servers.append(await asyncio.start_server(self._serve, tcp[0], tcp[1], limit=_MAX_REQUEST_BYTES))

    @property
    def tcp_port(self) -> int | None:
        for server in self._servers:
            for sock in server.sockets:
                name = sock.getsockname()
                if isinstance(name, tuple):
                    return int(name[1])
        return None

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._unix_path:
            Path(self._unix_path).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._clients >= _MAX_CLIENTS:
            writer.close()
            return
        self._clients += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass
        finally:
            self._clients -= 1
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        parts = request.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3:
            return _response(400, "text/plain", "not an HTTP request\n")
        method, target = parts[0], parts[1].split(b"?", 1)[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            return _response(405, "text/plain", "only GET\n")
        page = self._pages.get(target)
        if page is None:
            return _response(404, "text/plain", "pages: " + " ".join(sorted(self._pages)) + "\n")
        status, content_type, body = page()
        return _response(status, content_type, body, head=method == b"HEAD")


async def _free(path: str) -> None:
    """Take away a socket that nobody serves; OSError where somebody does, and for what is no socket."""
    if Path(path).exists() and not Path(path).is_socket():
        raise OSError(f"{path}: is not a socket; not replaced")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_unix_connection(path), 1.0)
    except (OSError, TimeoutError):
        Path(path).unlink(missing_ok=True)
        return
    writer.close()
    raise OSError(f"{path}: somebody else serves it; choose another --metrics-socket")


def _response(status: int, content_type: str, body: str, *, head: bool = False) -> bytes:
    data = body.encode()
    lines = (
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Status')}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode("latin-1") + (b"" if head else data)
