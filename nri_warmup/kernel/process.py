"""One process as procfs shows it, and pidfds. A pid is only a number: hold a pidfd, read, then ask whether it still
lives."""

from __future__ import annotations

import select
from dataclasses import dataclass

from nri_warmup.errors import KernelError
from nri_warmup.kernel import syscalls
from nri_warmup.kernel.root import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """From /proc/PID/stat: state letter, parent, start time in clock ticks since boot (with the pid it names a
    process)."""

    state: str
    parent: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdMap:
    """One line of /proc/PID/uid_map: ``length`` ids from ``inside`` on are those from ``outside`` on for the reader."""

    inside: int
    outside: int
    length: int


def pidfd_open(pid: int) -> int:
    """The caller closes it. KernelError ESRCH when there is no such process."""
    return syscalls.pidfd_open(pid)


def is_alive(pidfd: int) -> bool:
    """False once the process has exited, whether reaped or not: a pidfd is readable then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


def parse_stat(text: str) -> Stat:
    """The command name in parentheses may hold spaces and parentheses, so the last one ends it."""
    fields = text[text.rindex(")") + 2 :].split()
    return Stat(state=fields[0], parent=int(fields[1]), start_ticks=int(fields[19]))


def read_stat(root: Root, pid: int) -> Stat:
    return parse_stat(root.read_text(f"proc/{pid}/stat"))


def read_start_ticks(root: Root, pid: int) -> int:
    return read_stat(root, pid).start_ticks


def read_ids(root: Root, pid: int) -> tuple[int, int]:
    """(effective uid, effective gid) as numbers of the reader's user namespace."""
    uid = gid = None
    for line in root.read_text(f"proc/{pid}/status").splitlines():
        if line.startswith("Uid:"):
            uid = int(line.split()[2])
        elif line.startswith("Gid:"):
            gid = int(line.split()[2])
    if uid is None or gid is None:
        raise KernelError(root.resolve(f"proc/{pid}/status"), 0, "no Uid or Gid line")
    return uid, gid


def read_id_map(root: Root, pid: int, kind: str) -> tuple[IdMap, ...]:
    """``kind`` is ``uid`` or ``gid``."""
    lines = (line.split() for line in root.read_text(f"proc/{pid}/{kind}_map").splitlines())
    return tuple(IdMap(inside=int(a), outside=int(b), length=int(c)) for a, b, c in lines)


def id_inside(maps: tuple[IdMap, ...], outside: int) -> int | None:
    """The number by which an id is known inside a user namespace; None where it is not mapped."""
    for entry in maps:
        if entry.outside <= outside < entry.outside + entry.length:
            return entry.inside + outside - entry.outside
    return None
