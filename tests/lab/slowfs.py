"""A FUSE file system with one file, as slow as asked: a warm-up on it can be met half-way, and a read on it can hang.

``SlowFs(directory, size, bytes_per_s)`` mounts it and serves it from a process of its own. ``file`` holds ``size``
bytes; between ``hold()`` and ``release()`` reads are not answered: whoever reads then hangs, and no kill ends that.
The kernel protocol is that of include/uapi/linux/fuse.h, version 7.31; only what one read-only file needs is answered.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.cri import until

NAME = b"model.bin"

_HEADER = struct.Struct("<IIQQIIII")
"""len, opcode, unique, nodeid, uid, gid, pid, padding"""
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 25, 26, 27, 28, 29, 36, 42
_ROOT, _FILE = 1, 2
_KEEP_CACHE = 1 << 1
_MAX_READ = 128 << 10


class Server:
    """Answers the kernel. ``hold`` is a path: while it exists reads wait."""

    def __init__(self, device: int, size: int, bytes_per_s: int, hold: Path) -> None:
        self._device = device
        self._size = size
        self._bytes_per_s = bytes_per_s
        self._hold = hold
        self._block = os.urandom(_MAX_READ)

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, (1 << 20) + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            answer = self._answer(opcode, node, request[_HEADER.size :])
            body, code = (answer, 0) if isinstance(answer, bytes) else (b"", answer)
            try:
                os.write(self._device, struct.pack("<IiQ", 16 + len(body), -code, unique) + body)
            except OSError as error:
                if error.errno != errno.ENOENT:  # the asker was killed meanwhile
                    raise

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes | int:
        if opcode == _INIT:
            readahead = struct.unpack_from("<III", body)[2]
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, readahead, 0, 12, 9, _MAX_READ, 1, 32, 0, 0)
        if opcode == _LOOKUP:
            entry = struct.pack("<QQQQII", _FILE, 0, 60, 60, 0, 0) + self._attributes(_FILE)
            return entry if body[:-1] == NAME else errno.ENOENT
        if opcode == _GETATTR:
            return struct.pack("<QII", 60, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _KEEP_CACHE if opcode == _OPEN else 0, 0)
        if opcode == _READ:
            return self._read(*struct.unpack_from("<QQI", body)[1:])
        if opcode == _READDIR:
            offset = struct.unpack_from("<QQ", body)[1]
            entry = struct.pack("<QQII", _FILE, 1, len(NAME), stat.S_IFREG >> 12) + NAME
            return entry + b"\0" * (-len(entry) % 8) if offset == 0 else b""
        if opcode == _STATFS:
            return struct.pack("<QQQQQIIII24x", self._size >> 12, 0, 0, 1, 0, 4096, 255, 4096, 0)
        return b"" if opcode in (_RELEASE, _RELEASEDIR, _FLUSH) else errno.ENOSYS

    def _attributes(self, node: int) -> bytes:
        mode, size, links = (stat.S_IFREG | 0o444, self._size, 1) if node == _FILE else (stat.S_IFDIR | 0o555, 0, 2)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size >> 9, 0, 0, 0, 0, 0, 0, mode, links, 0, 0, 0, 4096, 0)

    def _read(self, offset: int, size: int) -> bytes:
        while self._hold.exists():
            time.sleep(0.01)
        size = max(0, min(size, self._size - offset))
        time.sleep(size / self._bytes_per_s)
        return (self._block * (size // len(self._block) + 1))[:size]


class SlowFs:
    def __init__(self, directory: Path, size: int, bytes_per_s: int) -> None:
        self.directory = directory
        self.file = directory / NAME.decode()
        self._hold = directory.with_name(directory.name + ".hold")
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.lab.slowfs", directory, str(size), str(bytes_per_s), self._hold]
        self._process = subprocess.Popen([str(part) for part in command], cwd=Path(__file__).parents[2])
        until("the slow file system", lambda: os.path.ismount(directory), 20)

    def hold(self) -> None:
        self._hold.touch()

    def release(self) -> None:
        self._hold.unlink(missing_ok=True)

    def unmount(self) -> None:
        """As kubelet does it: not lazily. Raises where something still holds it."""
        subprocess.run(["umount", self.directory], check=True, capture_output=True, text=True)
        self._process.wait(10)

    def close(self) -> None:
        """Whatever the state."""
        self.release()
        if os.path.ismount(self.directory):
            subprocess.run(["umount", "-l", self.directory], check=False)
        self._process.kill()
        self._process.wait()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    directory, size, bytes_per_s, hold = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={_MAX_READ}"
    if libc.mount(b"slowfs", os.fsencode(directory), b"fuse.slowfs", 1 | 2 | 4, options.encode()):  # ro, nosuid, nodev
        raise OSError(ctypes.get_errno(), "mount", str(directory))
    Server(device, size, bytes_per_s, hold).serve()


if __name__ == "__main__":
    main()
