"""What a test asks the guest's own kernel: cgroup v2 files, LRU lists, NUMA placement. No code of the program's own."""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab import pages

SUITE = os.environ.get("NRI_WARMUP_GUEST", "")
DRIVER = os.environ.get("NRI_WARMUP_GUEST_DRIVER", "")
TOPOLOGY = os.environ.get("NRI_WARMUP_GUEST_TOPOLOGY", "")
OUT = Path("/share/out")
CGROUPS = Path("/sys/fs/cgroup")
LRU_GEN = Path("/sys/kernel/mm/lru_gen/enabled")
NODES = Path("/sys/devices/system/node")
MIB = 1 << 20

_KPF_LARGE = 1 << 15 | 1 << 16 | 1 << 22  # compound head, compound tail, THP


def keys(path: Path) -> dict[str, int]:
    """A file of ``key number`` lines: memory.stat, memory.events."""
    return {key: int(value) for key, value in (line.split() for line in path.read_text().splitlines())}


def cgroup_of(pid: int) -> Path:
    """The one cgroup a process is in on v2."""
    [line] = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return CGROUPS / line.removeprefix("0::").lstrip("/")


def members(cgroup: Path) -> list[int]:
    return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]


def controllers(cgroup: Path) -> set[str]:
    return set((cgroup / "cgroup.subtree_control").read_text().split())


@contextmanager
def multigenerational_lru(on: bool) -> Iterator[None]:
    before = LRU_GEN.read_text().strip()
    LRU_GEN.write_text("y" if on else "n")
    try:
        yield
    finally:
        LRU_GEN.write_text(before)


def numa_stat(cgroup: Path, kind: str = "file") -> dict[int, int]:
    """Bytes of that kind on each node, of a cgroup's memory.numa_stat."""
    for line in (cgroup / "memory.numa_stat").read_text().splitlines():
        name, *fields = line.split()
        if name == kind:
            return {int(node.lstrip("N")): int(value) for node, value in (field.split("=") for field in fields)}
    raise RuntimeError(f"{cgroup} says nothing of {kind}")


def numa_pages(pid: int, path_end: str) -> Counter[int]:
    """Node -> pages, of the mappings of a file in a process (numa_maps)."""
    found: Counter[int] = Counter()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if re.search(rf"file=\S*{re.escape(path_end)}( |$)", line):
            unit = int(match[1]) // 4 if (match := re.search(r"kernelpagesize_kB=(\d+)", line)) else 1
            for node, count in re.findall(r" N(\d+)=(\d+)", line):
                found[int(node)] += int(count) * unit
    return found


def large_share(path: Path) -> float:
    """Share of a file's pages that lie in large folios (kpageflags)."""
    with pages._mapped(path) as (at, size):
        count = -(-size // pages.PAGE)
        pages._check(pages._libc.madvise(at, size, pages._MADV_POPULATE_READ), "MADV_POPULATE_READ")
        with (
            open("/proc/self/pagemap", "rb", buffering=0) as pagemap,
            open("/proc/kpageflags", "rb", buffering=0) as flags,
        ):
            entries = os.pread(pagemap.fileno(), count * 8, at // pages.PAGE * 8)
            large = 0
            for (entry,) in struct.iter_unpack("<Q", entries):
                word = struct.unpack("<Q", os.pread(flags.fileno(), 8, (entry & ((1 << 55) - 1)) * 8))[0]
                large += bool(word & _KPF_LARGE)
    return large / count


def nodes() -> list[int]:
    return sorted(int(path.name.removeprefix("node")) for path in NODES.glob("node[0-9]*"))


def model_config(**profile: Any) -> dict[str, Any]:
    """One profile, ``model``, for pods labelled ``app: llm``."""
    return {
        "profiles": {"model": {"files": ["/models/**"], "reserve": "4Mi", **profile}},
        "selectors": [{"profile": "model", "matchLabels": LABELS}],
    }


LABELS = {"app": "llm"}
