"""What passes between the daemon, the zygote and a worker: the task going in, records coming out.

Imported by all three, so nothing heavy here. The task is written by the daemon and trusted: marshal. Records come from
a process that has handled a tenant's data and are only ever parsed as JSON with every type checked (``records.py``).
One record is one line, a JSON array whose first element names it.
"""

from __future__ import annotations

import marshal
import os

MAX_LINE = 64 << 10
"""Longest record in bytes: a path of 4096 bytes, each written as six, and room for the rest."""

MAX_FILE_RECORDS = 1000

_ESCAPES = {**{i: f"\\u{i:04x}" for i in range(0x20)}, 0x22: '\\"', 0x5C: "\\\\", 0x7F: "\\u007f"}

Field = str | int | float | bool | None


class Task:
    """The worker's orders. Everything that needs the host's view (cgroup paths, inode numbers, ids) is resolved in
    it."""

    __slots__ = (
        "budget_bytes",
        "cgroups",
        "chroot",
        "cold",
        "cpus",
        "deadline_s",
        "gid",
        "lease_wait_s",
        "literal",
        "max_bytes",
        "max_files",
        "measure_only",
        "namespaces",
        "nodes",
        "owner",
        "patterns",
        "pmd_bytes",
        "populate",
        "readahead_bytes",
        "uid",
    )

    def __init__(self) -> None:
        self.patterns: tuple[str, ...] = ()
        self.literal = False
        self.max_bytes = 1 << 44
        self.max_files = 10_000
        self.budget_bytes: int | None = None
        self.deadline_s = 300.0
        self.readahead_bytes = 128 << 10
        self.pmd_bytes = 2 << 20
        """Size of a PMD on this machine: the largest folio worth having."""
        self.lease_wait_s = 2.0
        """How long another job that holds a file is waited for without seeing it get on."""
        self.cold = True
        self.populate = True
        self.measure_only = False
        """Say what is resident, and read nothing."""
        self.cgroups: tuple[tuple[str, bool], ...] = ()
        """(path of a cgroup.procs file, whether page cache is charged there)."""
        self.owner: int | None = None
        """Inode of the memory cgroup's directory."""
        self.namespaces = 0
        """CLONE_NEW* flags to join through the target's pidfd."""
        self.chroot = ""
        self.cpus: tuple[int, ...] = ()
        self.nodes: tuple[int, ...] = ()
        self.uid: int | None = None
        """Read as this uid and gid, numbers of the user namespace entered, with no capability at all."""
        self.gid: int | None = None

    def dump(self) -> bytes:
        return marshal.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def load(cls, data: bytes) -> Task:
        task = cls()
        for name, value in marshal.loads(data).items():
            setattr(task, name, value)
        return task


def render_record(fields: tuple[Field, ...]) -> bytes:
    """One line. Written by hand: importing json would cost every zygote a megabyte."""
    parts = []
    for field in fields:
        if isinstance(field, str):
            parts.append('"' + field.translate(_ESCAPES) + '"')
        elif field is None:
            parts.append("null")
        elif field is True or field is False:
            parts.append("true" if field else "false")
        else:
            parts.append(repr(field))
    return ("[" + ",".join(parts) + "]\n").encode("utf-8", "surrogateescape")


class Report:
    """The worker's only way out: records on one descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, *fields: Field) -> None:
        line = render_record(fields)
        if len(line) > MAX_LINE:
            return
        view = memoryview(line)
        while view:
            view = view[os.write(self._fd, view) :]
