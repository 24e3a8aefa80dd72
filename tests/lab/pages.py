"""An independent witness for the page cache, sharing no code with the program under test.

It looks through mappings with MADV_RANDOM, so that looking leaves no trace on the LRU lists, and touches only pages
that mincore calls resident, so that looking reads nothing.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE = os.sysconf("SC_PAGESIZE")

_PROT_READ = 1
_MAP_SHARED = 1
_MADV_RANDOM = 1
_MADV_POPULATE_READ = 22

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


@contextmanager
def _mapped(path: Path | str) -> Iterator[tuple[int, int]]:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        at = _libc.mmap(None, size, _PROT_READ, _MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    if at in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    try:
        _check(_libc.madvise(at, size, _MADV_RANDOM), "madvise")
        yield at, size
    finally:
        _libc.munmap(at, size)


def _mincore(at: int, size: int) -> bytes:
    pages = -(-size // PAGE)
    vector = ctypes.create_string_buffer(pages)
    _check(_libc.mincore(at, size, vector), "mincore")
    return bytes(byte & 1 for byte in vector.raw[:pages])


def resident_pages(path: Path | str) -> tuple[int, int]:
    """(pages in the page cache, pages of the file)."""
    if Path(path).stat().st_size == 0:
        return 0, 0
    with _mapped(path) as (at, size):
        seen = _mincore(at, size)
    return sum(seen), len(seen)


def resident_share(path: Path | str) -> float:
    resident, pages = resident_pages(path)
    return resident / pages if pages else 1.0


def _runs(seen: bytes) -> Iterator[tuple[int, int]]:
    start = seen.find(1)
    while start >= 0:
        end = seen.find(0, start)
        end = len(seen) if end < 0 else end
        yield start, end
        start = seen.find(1, end)


def owners(path: Path | str) -> Counter[int]:
    """Inode of the memory cgroup directory that a page is charged to -> pages, for the resident pages (kpagecgroup)."""
    found: Counter[int] = Counter()
    with _mapped(path) as (at, size):
        seen = _mincore(at, size)
        for start, end in _runs(seen):
            _check(_libc.madvise(at + start * PAGE, (end - start) * PAGE, _MADV_POPULATE_READ), "MADV_POPULATE_READ")
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap, open("/proc/kpagecgroup", "rb") as kpagecgroup:
            entries = os.pread(pagemap.fileno(), len(seen) * 8, at // PAGE * 8)
            for index, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
                if seen[index] and entry >> 63:
                    frame = entry & ((1 << 55) - 1)
                    found[struct.unpack("<Q", os.pread(kpagecgroup.fileno(), 8, frame * 8))[0]] += 1
    return found


def evict(path: Path | str) -> None:
    """Drop one file of ours from the page cache and make sure of it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    resident, pages = resident_pages(path)
    if resident:
        raise RuntimeError(f"{path}: {resident} of {pages} pages stay after eviction; mapped, or on tmpfs?")


def make_model(path: Path, size: int) -> Path:
    """A file of random bytes, on disk and not in the page cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        left = size
        while left > 0:
            left -= out.write(os.urandom(min(left, 1 << 20)))
        out.flush()
        os.fsync(out.fileno())
    evict(path)
    return path


# cgroups of a process


def cgroup_mounts() -> dict[str, Path]:
    """Controller -> where its hierarchy is mounted; "" is the unified one."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            mounts.setdefault("", Path(left.split()[4]))
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, Path(left.split()[4]))
    return mounts


def memory_cgroup(pid: int) -> Path:
    """The directory of the memory cgroup of a process, v1 or v2."""
    mounts = cgroup_mounts()
    wanted = "memory" if "memory" in mounts else ""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (wanted in controllers.split(",")) if wanted else not controllers:
            found = mounts[wanted] / path.lstrip("/")
            while not wanted and not (found / "memory.current").exists() and found != mounts[wanted]:
                found = found.parent  # v2: a cgroup without the controller is charged to the next one up that has it
            return found
    raise RuntimeError(f"pid {pid} is in no memory cgroup")


def memory_stat(cgroup: Path) -> dict[str, int]:
    return {
        key: int(value) for key, value in (line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    }


def memory_usage(cgroup: Path) -> int:
    for name in ("memory.current", "memory.usage_in_bytes"):
        if (cgroup / name).exists():
            return int((cgroup / name).read_text())
    raise RuntimeError(f"{cgroup} has no memory controller")


def oom_kills(cgroup: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        if (cgroup / name).exists():
            values = dict(line.split() for line in (cgroup / name).read_text().splitlines())
            return int(values.get("oom_kill", 0))
    raise RuntimeError(f"{cgroup} has no memory controller")
