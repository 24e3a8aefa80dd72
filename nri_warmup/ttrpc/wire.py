"""Protobuf's wire format, just enough to look into a message without decoding it.

Owns varints, field walking and the rendering of single fields. Knows no message. Everything that is read here came from
the other side, so what cannot be read is a RemoteProtocolError.
(Format: protobuf.dev, "Encoding".)
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_warmup.errors import RemoteProtocolError

Buffer = bytes | bytearray | memoryview

VARINT, FIXED64, LEN, FIXED32 = 0, 1, 2, 5
_TWO_63, _TWO_64 = 1 << 63, 1 << 64


def read_varint(data: Buffer, pos: int) -> tuple[int, int]:
    """The unsigned value at ``pos`` and the position after it."""
    try:
        byte = data[pos]
        if byte < 0x80:
            return byte, pos + 1
        value, shift = byte & 0x7F, 7
        while True:
            pos += 1
            byte = data[pos]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (_TWO_64 - 1), pos + 1
            shift += 7
            if shift > 63:
                raise RemoteProtocolError("a varint is longer than ten bytes")
    except IndexError:
        raise RemoteProtocolError("a varint runs past the end of the message") from None


def signed(value: int) -> int:
    """A varint read as int64 (or as int32, which is sign-extended to 64 bits on the wire)."""
    return value - _TWO_64 if value >= _TWO_63 else value


def fields(data: Buffer, pos: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Walk the top-level fields of ``data[pos:end]``: (number, wire type, value, end position).

    ``value`` is the number of a VARINT and the start position of anything else.
    """
    while pos < end:
        key, pos = read_varint(data, pos)
        kind = key & 7
        number = key >> 3
        if not 0 < number < 1 << 29:
            raise RemoteProtocolError(f"field number {number} is not allowed")
        if kind == LEN:
            size, pos = read_varint(data, pos)
            start, pos = pos, pos + size
            if pos > end:
                raise RemoteProtocolError("a field runs past the end of the message")
            yield number, kind, start, pos
        elif kind == VARINT:
            value, pos = read_varint(data, pos)
            if pos > end:
                raise RemoteProtocolError("a varint runs past the end of the message")
            yield number, kind, value, pos
        elif kind in (FIXED64, FIXED32):
            start, pos = pos, pos + (8 if kind == FIXED64 else 4)
            if pos > end:
                raise RemoteProtocolError("a fixed-size field runs past the end of the message")
            yield number, kind, start, pos
        else:
            raise RemoteProtocolError(f"wire type {kind} is not used in proto3")


def text(data: Buffer, start: int, end: int) -> str:
    """A string field; proto3 strings are UTF-8."""
    try:
        return str(data[start:end], "utf-8")
    except UnicodeDecodeError:
        raise RemoteProtocolError("a string field is not UTF-8") from None


def varint(value: int) -> bytes:
    """Render one number; negative ones as protobuf does for int32 and int64, in ten bytes."""
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= _TWO_64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def render_bytes(number: int, value: bytes) -> bytes:
    """A string, bytes or message field, nothing where it is empty (proto3 leaves default values out)."""
    return b"%b%b%b" % (varint(number << 3 | LEN), varint(len(value)), value) if value else b""


def render_varint(number: int, value: int) -> bytes:
    """An integer, bool or enum field, nothing where it is 0."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""
