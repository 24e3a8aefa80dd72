"""One job per file at a time on the host, as far as that helps: what another job brings in need not be read twice.

A byte-range lock on a common file, one place a file, that dies with its holder. The holder may be slow, or somebody who
means harm: it is waited for only while the file comes in at a rate worth waiting for, then read beside it. Two overlay
mounts of one lower file (two pods of one image) differ in device number and share the inode's, so there the inode alone
is the file; two that are not the same and share a number wait for each other no longer than that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from _blake2 import blake2b  # hashlib would cost the zygote OpenSSL

from nri_warmup.errors import KernelError
from nri_warmup.inject.work import STEP, WINDOW, Range, Work, missing_in, total
from nri_warmup.kernel import syscalls
from nri_warmup.kernel.pagecache import Mapping

TYPE_CHECKING = False  # importing typing would cost the zygote memory
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Clock = Callable[[], float]

PROGRESS = STEP
"""The least that counts as getting on, within one wait."""
LOOK_S = 0.2
PAUSE_S = 0.02
_LOOK_WINDOWS = 16
OVERLAYFS_SUPER_MAGIC = 0x794C7630


class Lease:
    """``take`` before a file is read, ``release`` after; without a descriptor neither does anything."""

    def __init__(self, fd: int | None, wait_s: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._fd = fd
        self._wait_s = wait_s

    def take(self, work: Work, tick: Callable[[], None]) -> bool:
        """True when the file is ours; False when it is read without waiting any longer. ``tick`` is called all the
        while and may raise."""
        if self._fd is None:
            return True
        place = place_of(_device(work), work.found.inode)
        if self._lock(place):
            return True
        mapping = None
        try:
            if work.truthful:
                mapping = Mapping(work.fd, 0, work.found.size)
            return self._wait(place, Watch(mapping, work.ranges), tick)
        except KernelError:
            return False
        finally:
            if mapping is not None:
                mapping.unmap()

    def _wait(self, place: int, watch: Watch, tick: Callable[[], None]) -> bool:
        since = looked = self._clock()
        watch.look()
        came = 0
        while not self._lock(place):
            tick()
            now = self._clock()
            if now - looked >= LOOK_S:
                looked = now
                came += watch.look()
                if watch.complete:
                    return False  # nothing left to read
                if came >= PROGRESS:
                    since, came = now, 0
            if now - since > self._wait_s:
                return False
            time.sleep(PAUSE_S)
        return True

    def _lock(self, place: int) -> bool:
        """Also true where there are no such locks: then nobody can be waited for."""
        assert self._fd is not None
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, place, 1))
        except OSError as exc:
            return exc.errno not in (errno.EAGAIN, errno.EACCES)
        return True

    def release(self) -> None:
        if self._fd is not None:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))


class Watch:
    """How a file comes in by somebody else's hand. Looks at its first absent parts only, whatever its size."""

    def __init__(self, mapping: Mapping | None, ranges: list[Range]) -> None:
        self._mapping = mapping
        self._ahead = _windows(ranges)
        self._open: list[Range] = []
        self.complete = False

    def look(self) -> int:
        """Bytes that have come since the last look."""
        if self._mapping is None:
            return 0
        before = total(self._open)
        self._open = missing_in(self._mapping, self._open)
        came = before - total(self._open)
        for _ in range(_LOOK_WINDOWS):
            if total(self._open) >= WINDOW:
                break
            following = next(self._ahead, None)
            if following is None:
                self.complete = not self._open
                break
            self._open += missing_in(self._mapping, [following])
        return came


def _windows(ranges: list[Range]) -> Iterator[Range]:
    for start, end in ranges:
        for at in range(start, end, WINDOW):
            yield at, min(end, at + WINDOW)


def _device(work: Work) -> int:
    try:
        return 0 if syscalls.fstatfs_type(work.fd) == OVERLAYFS_SUPER_MAGIC else work.found.device
    except KernelError:
        return work.found.device


def place_of(device: int, inode: int) -> int:
    """Where in the common file a file's lock is. A tenant can choose inode numbers (FUSE), so they must not be
    computable from the place wanted."""
    digest = blake2b(struct.pack("QQ", device, inode), digest_size=8).digest()
    return int.from_bytes(digest, "little") & ((1 << 62) - 1)


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)
