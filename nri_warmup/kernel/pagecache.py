"""What of a file is in memory, and bringing it in: mmap, mincore, MADV_*, WILLNEED. No policy.

Offsets and lengths are bytes of the file. A ``Mapping`` is a shared read-only mapping that no Python code can read
through.
"""

from __future__ import annotations

import errno
import fcntl
import os

from nri_warmup.errors import KernelError
from nri_warmup.kernel import syscalls
from nri_warmup.kernel.syscalls import PAGE_SIZE

PIECE = 2 << 20
"""The size of a PMD folio with 4 KiB pages, the most usual one."""

OVERLAYFS_MAGIC = 0x794C7630

_LOW_BIT = bytes(i & 1 for i in range(256))
_NAMES = {
    syscalls.MADV_POPULATE_READ: "madvise(MADV_POPULATE_READ)",
    syscalls.MADV_COLD: "madvise(MADV_COLD)",
    syscalls.MADV_HUGEPAGE: "madvise(MADV_HUGEPAGE)",
    syscalls.MADV_SEQUENTIAL: "madvise(MADV_SEQUENTIAL)",
}


def page_end(offset: int) -> int:
    """``offset`` rounded up to a whole page."""
    return -(-offset // PAGE_SIZE) * PAGE_SIZE


class Mapping:
    """``length`` bytes of a file from ``offset`` on, at an address with the same remainder by ``align`` as the offset.

    Not every file system aligns mappings, so a reservation larger by one piece is made first and the file mapped into
    it. Raises KernelError from mmap(2): ENODEV where the file cannot be mapped (FUSE with direct I/O, pseudo files).
    """

    __slots__ = ("_reserved", "_reserved_length", "address", "length", "offset")

    def __init__(self, fd: int, offset: int, length: int, *, populate: bool = False, align: int = PIECE) -> None:
        if offset % PAGE_SIZE or length <= 0:
            raise KernelError("mmap", errno.EINVAL)
        self.offset = offset
        self.length = page_end(length)
        self._reserved_length = self.length + align
        flags = syscalls.MAP_PRIVATE | syscalls.MAP_ANONYMOUS | syscalls.MAP_NORESERVE
        self._reserved = syscalls.mmap(0, self._reserved_length, syscalls.PROT_NONE, flags, -1, 0)
        self.address = -(-self._reserved // align) * align + offset % align
        if self.address - align >= self._reserved:
            self.address -= align
        flags = syscalls.MAP_SHARED | syscalls.MAP_FIXED | (syscalls.MAP_POPULATE if populate else 0)
        try:
            syscalls.mmap(self.address, self.length, syscalls.PROT_READ, flags, fd, offset)
        except KernelError:
            self.unmap()
            raise

    def unmap(self) -> None:
        if self._reserved:
            syscalls.munmap(self._reserved, self._reserved_length)
            self._reserved = 0

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, *exc: object) -> None:
        self.unmap()

    def address_of(self, offset: int) -> int:
        return self.address + (offset - self.offset)

    def advise(self, offset: int, length: int, advice: int) -> None:
        try:
            syscalls.madvise(self.address_of(offset), page_end(length), advice)
        except KernelError as exc:
            raise KernelError(_NAMES.get(advice, exc.path), exc.errno) from None

    def residency(self, offset: int, length: int) -> bytes:
        """One byte a page of the range, 1 where it is resident (mincore)."""
        return syscalls.mincore(self.address_of(offset), length).translate(_LOW_BIT)


def absent_runs(vector: bytes, offset: int, end: int) -> list[tuple[int, int]]:
    """(start, end) of every run of absent pages in a mincore vector that begins at ``offset``; clamped to ``end``."""
    runs: list[tuple[int, int]] = []
    first = vector.find(0)
    while first >= 0:
        last = vector.find(1, first)
        stop = last if last >= 0 else len(vector)
        runs.append((offset + first * PAGE_SIZE, min(end, offset + stop * PAGE_SIZE)))
        first = vector.find(0, stop) if last >= 0 else -1
    return runs


def kernel_release() -> tuple[int, int]:
    """(major, minor) of the running kernel."""
    major, minor = (os.uname().release.split("-")[0].split(".") + ["0"])[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def tells_truth(fd: int, *, in_user_namespace: bool, release: tuple[int, int]) -> bool:
    """Whether mincore answers truthfully for this file: it calls everything resident for those who may not know.

    Those who may are the owner, and who holds CAP_FOWNER where the owner's uid is mapped (can_do_mincore,
    mm/mincore.c; who may write as well, but that is not asked). O_NOATIME goes through the very same test of the
    kernel's, inode_owner_or_capable, in every version. cachestat does not: it is missing before 6.5, and told everybody
    until 2025.

    Through overlayfs before 6.7 mincore asks about the lower file by the ids of the overlay's mount, O_NOATIME about
    the overlay's own inode: in a user namespace the two may differ (idmapped layers), so there nothing is believed.
    """
    if in_user_namespace and release < (6, 7) and syscalls.fstatfs_type(fd) == OVERLAYFS_MAGIC:
        return False
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_NOATIME:  # opened so, which took the same test
        return True
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NOATIME)
    except OSError:
        return False
    return True


def will_need(fd: int, start: int, end: int, chunk: int) -> None:
    """POSIX_FADV_WILLNEED over a range, ``chunk`` bytes a call: one call never loads more than the device's
    readahead."""
    for offset in range(start, end, chunk):
        try:
            os.posix_fadvise(fd, offset, min(chunk, end - offset), os.POSIX_FADV_WILLNEED)
        except OSError as exc:
            raise KernelError("posix_fadvise(WILLNEED)", exc.errno or 0) from exc


def data_ranges(fd: int, size: int, limit: int) -> list[tuple[int, int]]:
    """The parts of a file that are not holes, page-aligned and merged; after ``limit`` of them the rest counts as
    data."""
    ranges: list[tuple[int, int]] = []
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE) if len(ranges) < limit else size
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # only a hole from here on
                break
            return [(0, size)]
        start = start // PAGE_SIZE * PAGE_SIZE
        end = min(page_end(end), size)
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
        else:
            ranges.append((start, end))
        position = max(end, position + 1)
    return ranges
