"""What is left behind: cgroups, mounts and processes. A test asks before and after, and compares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.pages import cgroup_mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; the start time tells it from another that got the same pid later."""

    pid: int
    started: int
    parent: int
    session: int
    command: str

    def alive(self) -> bool:
        now = read_process(self.pid)
        return now is not None and now.started == self.started


def read_process(pid: int) -> Process | None:
    """None for one that is gone, or that is a zombie: those hold nothing."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]), command=command)


def processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def descendants(pid: int) -> list[Process]:
    """Children, their children …, and whoever else is in that process's session."""
    everyone = list(processes())
    found: dict[int, Process] = {}
    wanted = {pid}
    while wanted:
        fresh = {
            p.pid: p
            for p in everyone
            if (p.parent in wanted or p.session == pid) and p.pid not in found and p.pid != pid
        }
        found |= fresh
        wanted = set(fresh)
    return list(found.values())


def mounts_below(directory: Path) -> list[str]:
    """Mount points at or below a directory, deepest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].replace("\\040", " ")
        if point == str(directory) or point.startswith(f"{directory}/"):
            found.append(point)
    return sorted(found, key=len, reverse=True)


def slice_directory(name: str) -> str:
    """Where systemd puts a slice: ``a-b.slice`` is ``a.slice/a-b.slice``. Other names stay as they are."""
    if not name.endswith(".slice") or "/" in name.strip("/"):
        return name
    words = name.strip("/").removesuffix(".slice").split("-")
    return "/".join("-".join(words[: count + 1]) + ".slice" for count in range(len(words)))


def cgroups(name: str) -> list[Path]:
    """Directories at and below the cgroup (or slice) of that name, in every hierarchy, deepest first."""
    found = []
    for mount in set(cgroup_mounts().values()):
        top = mount / slice_directory(name).strip("/")
        if top.is_dir():
            found += [Path(where) for where, _, _ in os.walk(top)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def remove_cgroups(name: str) -> bool:
    """Remove them all; False where one is still in use."""
    for path in cgroups(name):
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def pods_below(name: str) -> list[Path]:
    """cgroups left of pods: everything below the lab's own top-level directory."""
    return [path for path in cgroups(name) if path.name != name.strip("/")]
