"""Containers, cgroups and files for tests on this machine's real kernel. No container runtime: namespaces made by
hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nri_warmup.kernel import cgroup, pagecache, pagemap, syscalls
from nri_warmup.kernel.pagecache import Mapping
from nri_warmup.kernel.root import Root

MIB = 1 << 20
CHILD = Path(__file__).with_name("container_child.py")


class Container:
    """A process in namespaces of its own. ``ask`` has it do something as code in the container would."""

    def __init__(self, process: subprocess.Popen[str], root: Path) -> None:
        self.process = process
        self.root = root
        self.pid = process.pid

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def container(
    root: Path,
    *,
    binds: Sequence[tuple[Path, str]] = (),
    pivot: bool = True,
    user_namespace: bool = False,
    privileged: bool = False,
    uid: int = 0,
    cgroups: Sequence[Path] = (),
) -> Iterator[Container]:
    """``binds`` are (host path, path in the container). Killed and reaped at the end."""
    order = {
        "root": str(root),
        "binds": [[str(source), target] for source, target in binds],
        "pivot": pivot,
        "user_namespace": user_namespace,
        "privileged": privileged,
        "uid": uid,
    }
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(CHILD), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        for directory in cgroups:
            (directory / "cgroup.procs").write_text(str(process.pid))
        line = process.stdout.readline().strip()
        if line == "mapme":
            Path(f"/proc/{process.pid}/uid_map").write_text("0 100000 65536\n")
            Path(f"/proc/{process.pid}/gid_map").write_text("0 100000 65536\n")
            process.stdin.write("go\n")
            process.stdin.flush()
            line = process.stdout.readline().strip()
        assert line == "ready", "the container did not come up"
        yield Container(process, root)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class MemoryCgroup:
    """A memory cgroup of our own below the one that the tests run in."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self.version = version
        self.procs = str(path / "cgroup.procs")

    @property
    def inode(self) -> int:
        return self.path.stat().st_ino

    def limit(self, n_bytes: int) -> None:
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        (self.path / name).write_text(str(n_bytes))

    def usage(self) -> int:
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.path / name).read_text())

    def stat(self, name: str) -> int:
        for line in (self.path / "memory.stat").read_text().splitlines():
            key, value = line.split()
            if key == name:
                return int(value)
        raise KeyError(name)

    def run(self, *argv: str) -> str:
        """A command inside this cgroup."""

        def enter() -> None:
            with open(self.procs, "w") as procs:
                procs.write("0")

        return subprocess.run(argv, preexec_fn=enter, check=True, stdout=subprocess.PIPE, text=True).stdout


def memory_parent() -> tuple[Path, int] | None:
    """Where a memory cgroup can be made: below our own on v1, beside our own on v2 (a leaf cannot have children)."""
    root = Root()
    membership = cgroup.memory_membership(root, cgroup.read_memberships(root, "self"))
    if membership is None:
        return None
    path = Path(root.resolve(membership.directory))
    version = membership.hierarchy.version
    if version == 2 and path != Path(membership.hierarchy.mount_point):
        path = path.parent
    return path, version


@contextmanager
def memory_cgroup(name: str) -> Iterator[MemoryCgroup]:
    parent = memory_parent()
    assert parent is not None
    path = parent[0] / f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir()
    try:
        yield MemoryCgroup(path, parent[1])
    finally:
        wait_for(lambda: not (path / "cgroup.procs").read_text(), "the cgroup to be empty")
        path.rmdir()


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.01)


def make_file(path: Path, size: int) -> Path:
    """Random content, on disk, and out of the page cache."""
    block = os.urandom(MIB)
    with path.open("wb") as file:
        left = size
        while left > 0:
            file.write(block[: min(left, MIB)])
            left -= MIB
        file.flush()
        os.fsync(file.fileno())
    drop(path)
    return path


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert resident(path) == 0, f"{path} did not leave the page cache"


def resident(path: Path) -> int:
    """Bytes in the page cache, by mincore."""
    size = path.stat().st_size
    if size == 0:
        return 0
    with path.open("rb") as file, Mapping(file.fileno(), 0, size) as mapping:
        vector = mapping.residency(0, size)
        return size - sum(end - start for start, end in pagecache.absent_runs(vector, 0, size))


def counts(path: Path, owner: int) -> pagemap.Counts:
    """Owner, folio size and LRU list of the resident pages of a wholly resident file.

    Looking does not activate folios of 2 MiB, which are touched as one; it does activate smaller ones.
    """
    size = path.stat().st_size
    pages = pagemap.PageMap()
    try:
        with path.open("rb") as file, Mapping(file.fileno(), 0, size) as mapping:
            mapping.advise(0, size, syscalls.MADV_HUGEPAGE)
            mapping.advise(0, size, syscalls.MADV_SEQUENTIAL)
            mapping.advise(0, size, syscalls.MADV_POPULATE_READ)
            return pages.count(mapping.address, mapping.length, owner)
    finally:
        pages.close()


def read_all(path: Path) -> tuple[str, ...]:
    """A command that reads a file as a server would, 1 MiB at a time."""
    return ("dd", f"if={path}", "of=/dev/null", "bs=1M", "status=none")


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
