"""A FUSE file system with one file, spoken by hand (linux/fuse.h, protocol 7.31), whose reads can be made to hang."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_HEADER = struct.Struct("<IIQQIIII")
MNT_FORCE, MNT_DETACH = 1, 2
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 26, 27, 29, 36, 42


class HangingFuse:
    """``with HangingFuse(tmp_path / "mnt") as fuse``: ``fuse.file`` is ``size`` zero bytes; with ``hang`` reads never
    end.

    ``reading`` is set when the first read has come in; ``on_read`` is called before each is answered, and ``on_lookup``
    before each name. With ``asynchronous`` readahead does not wait for the answer. Without ``allow_other`` only ``uid``
    may look, root included.
    """

    def __init__(
        self,
        mount_point: Path,
        *,
        size: int = 8 << 20,
        hang: bool = True,
        uid: int = 0,
        allow_other: bool = True,
        asynchronous: bool = False,
        on_read: Callable[[], None] = lambda: None,
        on_lookup: Callable[[], None] = lambda: None,
    ) -> None:
        self.mount_point = mount_point
        self.file = mount_point / "model.bin"
        self.reading = threading.Event()
        self._size, self._hang, self._uid, self._allow_other = size, hang, uid, allow_other
        self._flags = 1 if asynchronous else 0  # FUSE_ASYNC_READ: readahead returns before the data have come
        self._on_read, self._on_lookup = on_read, on_lookup
        self._fd = -1
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> HangingFuse:
        self.mount_point.mkdir(exist_ok=True)
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id={self._uid},group_id={self._uid}"
        options += ",allow_other" if self._allow_other else ""
        target = os.fsencode(self.mount_point)
        if _libc.mount(b"hanging", target, b"fuse.hanging", ctypes.c_ulong(6), options.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount fuse")
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()
        self._thread.join(5)
        os.close(self._fd)

    def abort(self) -> None:
        """As when the file system's daemon dies: every waiting request fails."""
        _libc.umount2(os.fsencode(self.mount_point), MNT_FORCE | MNT_DETACH)

    def unmount(self) -> None:
        """As an administrator does: fails when it is in use here, and leaves what other mount namespaces hold."""
        if _libc.umount2(os.fsencode(self.mount_point), 0) != 0:
            raise OSError(ctypes.get_errno(), "umount")

    @property
    def is_mounted_somewhere(self) -> bool:
        """The kernel tells the server when the last mount is gone."""
        return self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._fd, 1 << 20)
            except OSError as exc:
                if exc.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            self._answer(opcode, unique, node, request[_HEADER.size :])

    def _answer(self, opcode: int, unique: int, node: int, body: bytes) -> None:
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return
        if opcode == INIT:
            self._reply(
                unique, struct.pack("<IIIIHHIIHHI28x", 7, 31, 128 << 10, self._flags, 16, 12, 128 << 10, 1, 32, 0, 0)
            )
        elif opcode == LOOKUP:
            self._on_lookup()
            if body.rstrip(b"\0") == b"model.bin":
                self._reply(unique, struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + self._attributes(2))
            else:
                self._reply(unique, error=errno.ENOENT)
        elif opcode == GETATTR:
            self._reply(unique, struct.pack("<QII", 60, 0, 0) + self._attributes(node))
        elif opcode in (OPEN, OPENDIR):
            self._reply(unique, struct.pack("<QII", 1, 0, 0))
        elif opcode == READ:
            self.reading.set()
            if not self._hang:
                self._on_read()
                _, offset, size = struct.unpack_from("<QQI", body)
                self._reply(unique, bytes(max(0, min(size, self._size - offset))))
        elif opcode == STATFS:
            self._reply(unique, struct.pack("<QQQQQIII28x", 1, 0, 0, 1, 0, 4096, 255, 4096))
        elif opcode in (RELEASE, RELEASEDIR, FLUSH):
            self._reply(unique)
        else:
            self._reply(unique, error=errno.ENOSYS)

    def _reply(self, unique: int, payload: bytes = b"", error: int = 0) -> None:
        header = struct.pack("<IiQ", 16 + len(payload), -error, unique)
        try:
            os.write(self._fd, header + payload)
        except OSError:
            pass  # the request was interrupted meanwhile

    def _attributes(self, node: int) -> bytes:
        size, mode = (0, 0o40700) if node == 1 else (self._size, 0o100600)
        times = (0, 0, 0, 0, 0, 0)
        return struct.pack(
            "<QQQQQQIIIIIIIIII", node, size, size // 512, *times, mode, 1, self._uid, self._uid, 0, 4096, 0
        )
