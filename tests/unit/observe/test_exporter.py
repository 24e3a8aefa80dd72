"""The exporter over a real unix socket and TCP: pages, refusals, bounds."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from nri_warmup.observe.exporter import Exporter


async def _ask(path: str, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.fixture
def socket_path(tmp_path: Path) -> str:
    return str(tmp_path / "m.sock")


def _run(socket_path: str, request: bytes) -> bytes:
    async def main() -> bytes:
        exporter = Exporter(
            {"/metrics": lambda: (200, "text/plain", "x 1\n"), "/readyz": lambda: (503, "text/plain", "no\n")}
        )
        await exporter.start(unix_path=socket_path)
        assert stat.S_IMODE(Path(socket_path).stat().st_mode) == 0o660
        try:
            return await _ask(socket_path, request)
        finally:
            await exporter.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK", b"x 1\n"),
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", b"200 OK", b"x 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET /readyz HTTP/1.1\r\n\r\n", b"503 Service Unavailable", b"no\n"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found", b"pages: /metrics /readyz\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET\n"),
        (b"\x00\xff\r\n\r\n", b"400 Bad Request", b"not an HTTP request\n"),
    ],
)
def test_answers(socket_path: str, request_: bytes, status: bytes, body: bytes) -> None:
    answer = _run(socket_path, request_)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.partition(b"\r\n\r\n")[2] == body


def test_an_endless_request_is_cut_off(socket_path: str) -> None:
    assert _run(socket_path, b"GET /" + b"a" * 100_000) == b""


def test_the_socket_file_goes_with_the_exporter(socket_path: str) -> None:
    _run(socket_path, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert not Path(socket_path).exists()


def test_tcp_is_offered_when_asked_for() -> None:
    async def main() -> bytes:
        exporter = Exporter({"/metrics": lambda: (200, "text/plain", "x 1\n")})
        await exporter.start(unix_path=None, tcp=("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", exporter.tcp_port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await exporter.close()
        return answer

    assert asyncio.run(main()).endswith(b"x 1\n")
