"""The two messages that surround every call, read and written by hand: they are on the path of every event.

Owns ``ttrpc.Request``, ``ttrpc.Response`` and the status codes (proto/ttrpc.proto). Not the ten-byte header before them
(frames.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.ttrpc.wire import (
    LEN,
    VARINT,
    Buffer,
    fields,
    read_varint,
    render_bytes,
    render_varint,
    signed,
    text,
    varint,
)

MAX_STATUS_TEXT = 1000
"""Bytes of an error's text that we send: it ends up in events that a cluster stores."""


class Code(IntEnum):
    """The gRPC status codes that ttrpc uses."""

    OK = 0
    CANCELED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """``code`` is a plain number: the other side may use one that Code does not name."""

    code: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A parsed Request. ``timeout_ns`` is what the caller has left, 0 for no limit."""

    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0
    raw_metadata: tuple[bytes, ...] = ()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Pairs such as ``containerd-namespace-ttrpc: k8s.io``; parsed only when asked for."""
        return tuple(_parse_pair(raw) for raw in self.raw_metadata)


def parse_request(data: Buffer) -> Call:
    service = method = ""
    payload = b""
    timeout = 0
    metadata: list[bytes] = []
    pos, end = 0, len(data)
    # The loop of wire.fields() written out: a generator here costs as much as everything else together.
    while pos < end:
        field = pos
        key, pos = read_varint(data, pos)
        if key & 7 == LEN:
            size, start = read_varint(data, pos)
            pos = start + size
            if pos > end:
                raise RemoteProtocolError("a field runs past the end of the request")
            if key == 0x0A:
                service = text(data, start, pos)
            elif key == 0x12:
                method = text(data, start, pos)
            elif key == 0x1A:
                payload = bytes(data[start:pos])
            elif key == 0x2A:
                metadata.append(bytes(data[start:pos]))
            elif key < 8:
                raise RemoteProtocolError("field number 0 is not allowed")
        elif key == 0x20:
            value, pos = read_varint(data, pos)
            timeout = signed(value)
        else:
            pos = _skip(data, field, end)
    return Call(service=service, method=method, payload=payload, timeout_ns=timeout, raw_metadata=tuple(metadata))


def render_request(
    service: str, method: str, payload: bytes = b"", timeout_ns: int = 0, metadata: tuple[tuple[str, str], ...] = ()
) -> bytes:
    pairs = (render_bytes(1, k.encode()) + render_bytes(2, v.encode()) for k, v in metadata)
    return b"".join(
        (
            render_bytes(1, service.encode()),
            render_bytes(2, method.encode()),
            render_bytes(3, payload),
            render_varint(4, timeout_ns),
            *(b"\x2a" + varint(len(pair)) + pair for pair in pairs),
        )
    )


def parse_response(data: Buffer) -> tuple[Status, bytes]:
    """Status (code 0 where there is none) and payload. Empty data is an empty success."""
    code, message, payload = 0, "", b""
    for number, kind, start, end in fields(data, 0, len(data)):
        if kind == LEN and number == 1:
            for inner, inner_kind, value, stop in fields(data, start, end):
                if inner == 1 and inner_kind == VARINT:
                    code = signed(value)
                elif inner == 2 and inner_kind == LEN:
                    message = text(data, value, stop)
        elif kind == LEN and number == 2:
            payload = bytes(data[start:end])
    return Status(code=code, message=message), payload


def render_response(payload: bytes) -> bytes:
    return b"\x12" + varint(len(payload)) + payload if payload else b""


def render_error(code: int, message: str) -> bytes:
    brief = message.encode("utf-8", "replace")[:MAX_STATUS_TEXT].decode("utf-8", "ignore").encode()
    status = render_varint(1, code) + render_bytes(2, brief)
    return b"\x0a" + varint(len(status)) + status


def _parse_pair(data: bytes) -> tuple[str, str]:
    key = value = ""
    for number, kind, start, end in fields(data, 0, len(data)):
        if kind == LEN and number == 1:
            key = text(data, start, end)
        elif kind == LEN and number == 2:
            value = text(data, start, end)
    return key, value


def _skip(data: Buffer, pos: int, end: int) -> int:
    """The position after a field that is not ours."""
    return next(fields(data, pos, end))[3]
