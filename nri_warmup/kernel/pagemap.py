"""Who owns the pages behind a mapping, and how large their folios are: /proc/self/pagemap, /proc/kpagecgroup,
/proc/kpageflags.

Bits of kpageflags are those of uapi/linux/kernel-page-flags.h, not the kernel's own PG_* numbers. kpagecgroup gives
the inode of the memory cgroup's directory (v1 memory hierarchy or v2), the nearest online ancestor for a cgroup that
is gone.
"""

from __future__ import annotations

import os
from array import array

from nri_warmup.errors import KernelError
from nri_warmup.kernel.syscalls import PAGE_SIZE

KPF_ACTIVE = 6
KPF_COMPOUND_HEAD = 15
KPF_COMPOUND_TAIL = 16
KPF_THP = 22

_PRESENT = 1 << 63
_PFN = (1 << 55) - 1
_GAP = 16
"""Frames read for nothing between two runs rather than starting another read (a read costs as much as some 20
entries)."""


class Counts:
    """Pages of a range: looked up, owned by the cgroup asked for, in a large folio, on the active list."""

    __slots__ = ("active", "large", "owned", "pages")

    def __init__(self, pages: int = 0, owned: int = 0, large: int = 0, active: int = 0) -> None:
        self.pages = pages
        self.owned = owned
        self.large = large
        self.active = active

    def add(self, other: Counts) -> None:
        self.pages += other.pages
        self.owned += other.owned
        self.large += other.large
        self.active += other.active


class PageMap:
    """The three files, opened. Open it while privileged (CAP_SYS_ADMIN, or the frame numbers read as zero), use it
    after."""

    __slots__ = ("_cgroup", "_flags", "_pagemap")

    def __init__(self, proc: str = "/proc") -> None:
        fds: list[int] = []
        try:
            for name in ("self/pagemap", "kpagecgroup", "kpageflags"):
                path = f"{proc}/{name}"
                fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as exc:
            for fd in fds:
                os.close(fd)
            raise KernelError(path, exc.errno or 0) from exc
        self._pagemap, self._cgroup, self._flags = fds

    def fds(self) -> tuple[int, int, int]:
        return (self._pagemap, self._cgroup, self._flags)

    def close(self) -> None:
        for fd in self.fds():
            os.close(fd)

    def frames(self, address: int, length: int) -> list[int]:
        """Page frame numbers of the present pages of a range of our own address space, sorted."""
        entries = _read(self._pagemap, address // PAGE_SIZE, -(-length // PAGE_SIZE), "/proc/self/pagemap")
        return sorted(entry & _PFN for entry in entries if entry & _PRESENT and entry & _PFN)

    def count(self, address: int, length: int, owner: int) -> Counts:
        """Counts over the mapped pages of a range; ``owner`` is the inode of a memory cgroup's directory."""
        counts = Counts()
        for first, frames in _spans(self.frames(address, length)):
            width = frames[-1] - first + 1
            owners = _read(self._cgroup, first, width, "/proc/kpagecgroup")
            flags = _read(self._flags, first, width, "/proc/kpageflags")
            counts.pages += len(frames)
            if len(frames) == width:
                counts.owned += owners.count(owner)
                _count_flags(counts, flags)
            else:
                counts.owned += sum(1 for frame in frames if owners[frame - first] == owner)
                _count_flags(counts, array("Q", [flags[frame - first] for frame in frames]))
        return counts


def _count_flags(counts: Counts, flags: array[int]) -> None:
    # Whole folios repeat two values (head and tails), so counting distinct words is far cheaper than testing each.
    for word in set(flags):
        times = flags.count(word)
        if word >> KPF_THP & 1 or word >> KPF_COMPOUND_TAIL & 1 or word >> KPF_COMPOUND_HEAD & 1:
            counts.large += times
        if word >> KPF_ACTIVE & 1:
            counts.active += times


def _read(fd: int, first: int, width: int, path: str) -> array[int]:
    words = array("Q")
    try:
        data = os.pread(fd, width * 8, first * 8)
    except OSError as exc:
        raise KernelError(path, exc.errno or 0) from exc
    words.frombytes(data[: len(data) // 8 * 8])
    if len(words) < width:
        words.extend([0] * (width - len(words)))
    return words


def _spans(frames: list[int]) -> list[tuple[int, list[int]]]:
    """Sorted frame numbers as (first, frames) of stretches with no gap wider than ``_GAP``."""
    spans: list[tuple[int, list[int]]] = []
    begin = 0
    total = len(frames)
    while begin < total:
        first = frames[begin]
        # A large folio is one straight run: double the stride while the numbers stay in step.
        end = begin + 1
        stride = 1
        while end < total:
            probe = min(end + stride, total) - 1
            if frames[probe] - frames[end - 1] == probe - end + 1:
                end = probe + 1
                stride *= 2
            elif stride > 1:
                stride = 1
            elif frames[end] - frames[end - 1] <= _GAP:
                end += 1
            else:
                break
        spans.append((first, frames[begin:end]))
        begin = end
    return spans
