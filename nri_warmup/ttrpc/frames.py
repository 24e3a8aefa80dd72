"""Two layers of framing on one byte stream: mux frames carry the bytes of numbered connections, and inside each of them
ttrpc messages follow one another.

Mux frame:     connection id (u32 BE), length (u32 BE), bytes.
ttrpc message: length (u32 BE), stream id (u32 BE), type (u8), flags (u8), bytes.

Reading treats every connection as a byte stream: a frame may hold a part of a message or several. Writing may not: the
runtime's reader takes a frame at a time into a 4096-byte buffer and gives up where the frame is larger than the room
left, so a message longer than that is sent as its first 4096 bytes and then the rest, and never shares a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from nri_warmup.errors import LocalProtocolError, RemoteProtocolError
from nri_warmup.ttrpc.wire import Buffer

FIRST_FRAME = 4096
"""Largest first frame of a message (the runtime's reader buffer)."""
MAX_SEND = 4 << 20
"""Largest message data that ttrpc receivers accept."""
MAX_RECEIVE = 64 << 20
"""Largest message data that we take: NRI up to 0.6.1 sends all containers in one message, up to 16 MiB."""
MAX_FRAME = MAX_RECEIVE + 10
"""A frame header above this is noise, not a frame: no writer goes past 16 MiB."""

REQUEST, RESPONSE, DATA = 1, 2, 3

_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
_BOTH = struct.Struct(">IIIIBB")
HEADER = _MESSAGE.size


def render_message(conn: int, stream: int, kind: int, data: bytes = b"") -> bytes:
    """The bytes of one message on one connection, in one frame or two."""
    size = len(data)
    if size > MAX_SEND:
        raise LocalProtocolError(f"a message of {size} bytes; the other side takes {MAX_SEND}")
    if size + HEADER <= FIRST_FRAME:
        return _BOTH.pack(conn, size + HEADER, size, stream, kind, 0) + data
    cut = FIRST_FRAME - HEADER
    first = _BOTH.pack(conn, FIRST_FRAME, size, stream, kind, 0)
    return b"".join((first, data[:cut], _FRAME.pack(conn, size - cut), data[cut:]))


class FrameReader:
    """Mux frames out of a byte stream, in whatever pieces it comes."""

    __slots__ = ("_conn", "_head", "_left")

    def __init__(self) -> None:
        self._conn = 0
        self._left = 0
        self._head = b""

    @property
    def at_boundary(self) -> bool:
        return not self._left and not self._head

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """(connection id, bytes of it) for everything in ``data``; a frame's bytes come as they arrive."""
        if self._head:
            data = self._head + data
            self._head = b""
        pos, end = 0, len(data)
        while pos < end:
            if not self._left:
                if end - pos < 8:
                    self._head = data[pos:]
                    return
                self._conn, self._left = _FRAME.unpack_from(data, pos)
                pos += 8
                if self._left > MAX_FRAME:
                    raise RemoteProtocolError(f"a frame of {self._left} bytes on connection {self._conn}")
                if not self._left:
                    continue
            take = min(self._left, end - pos)
            self._left -= take
            yield self._conn, data[pos : pos + take]
            pos += take


class MessageReader:
    """ttrpc messages out of one connection's bytes: (stream id, type, data).

    Data above ``max_size`` is read and dropped, and reported as type TOO_LARGE with the length as data.
    """

    __slots__ = ("_buffer", "_max_size", "_need", "_skip")

    TOO_LARGE = -1

    def __init__(self, max_size: int = MAX_RECEIVE) -> None:
        self._buffer = bytearray()
        self._need = HEADER
        self._skip = 0
        self._max_size = max_size

    @property
    def at_boundary(self) -> bool:
        return not self._buffer and not self._skip

    def feed(self, piece: bytes) -> Iterator[tuple[int, int, Buffer]]:
        """Views handed out are valid until the next step of the iterator."""
        if self._skip:
            dropped = min(self._skip, len(piece))
            self._skip -= dropped
            piece = piece[dropped:]
        if not self._buffer and len(piece) >= HEADER:
            # The usual case: a piece that is one whole message.
            size, stream, kind, _ = _MESSAGE.unpack_from(piece)
            if size + HEADER == len(piece) and size <= self._max_size:
                yield stream, kind, piece[HEADER:]
                return
        self._buffer += piece
        while len(self._buffer) >= self._need:
            size, stream, kind, _ = _MESSAGE.unpack_from(self._buffer)
            whole = size + HEADER
            if size > self._max_size:
                yield stream, self.TOO_LARGE, str(size).encode()
                self._skip = max(0, whole - len(self._buffer))
                del self._buffer[:whole]
            elif len(self._buffer) < whole:
                self._need = whole
                return
            else:
                with memoryview(self._buffer) as view, view[HEADER:whole] as data:
                    yield stream, kind, data
                if whole == len(self._buffer):
                    self._buffer = bytearray()  # gives a large one's memory back
                else:
                    del self._buffer[:whole]
            self._need = HEADER
