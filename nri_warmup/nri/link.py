"""The socket of one connection on the event loop: bytes up, bytes down, and why it ended.

Its own reader and writer on the loop's selector and not an asyncio transport: a reply is written by the thread that
answers for a stuck handler too, and an event costs two system calls.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

_READ_SIZE = 1 << 18
_READS_A_TURN = 32


class Link:
    """Owns the socket. ``on_data`` gets every piece read, ``on_lost`` the reason, once."""

    def __init__(
        self,
        sock: socket.socket,
        on_data: Callable[[bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_data = on_data
        self._on_lost = on_lost
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)
        self._backlog = bytearray()
        self._lock = threading.Lock()
        self._closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def write(self, data: bytes) -> None:
        """Send, or keep what the socket does not take now. Callable from any thread; nothing happens once closed."""
        with self._lock:
            if self._closed:
                return
            if not self._backlog:
                try:
                    sent = self._sock.send(data)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError as error:
                    self.later(self.close, f"write: {error}")
                    return
                if sent == len(data):
                    return
                data = data[sent:]
                self.later(self._want_writable)
            self._backlog += data

    def close(self, reason: str) -> None:
        """Close and report. Only on the loop's thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._backlog.clear()
        self._on_lost(reason)

    def later(self, callback: Callable[..., None], *arguments: str) -> None:
        """Have something done on the loop's thread, from any thread."""
        self._loop.call_soon_threadsafe(callback, *arguments)

    def _want_writable(self) -> None:
        if not self._closed:
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        reason = ""
        with self._lock:
            if self._closed:
                return
            try:
                sent = self._sock.send(self._backlog)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                reason = f"write: {error}"
            else:
                del self._backlog[:sent]
                if not self._backlog:
                    self._loop.remove_writer(self._sock.fileno())
        if reason:
            self.close(reason)

    def _readable(self) -> None:
        for _ in range(_READS_A_TURN):
            try:
                size = self._sock.recv_into(self._buffer)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self.close(f"read: {error}")
                return
            if not size:
                self.close("")
                return
            self._on_data(bytes(self._view[:size]))
            # A short read has emptied the socket; the selector tells of what comes next.
            if size < _READ_SIZE or self._closed:
                return
