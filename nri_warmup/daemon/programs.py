"""Warm-up programs of the operator, the host's side: whether they can be run here, and the log they write to.

The launcher is mounted into containers, so it has to be static. What a program prints comes from inside a container
over a socket that anything in there may write to: the container is told by the peer's cgroup, never by what it says,
and what it says is bounded and stripped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from nri_warmup.daemon import logs
from nri_warmup.daemon.registry import Entry
from nri_warmup.errors import KernelError
from nri_warmup.kernel import cgroup
from nri_warmup.kernel.root import Root
from nri_warmup.model.node import NodeState
from nri_warmup.model.profile import Config
from nri_warmup.observe.metrics import Registry as Metrics
from nri_warmup.policy.program import LOG_SOCKET

_MAX_LINE = 2048
_MAX_LINES = 100
_MAX_SHOWN = 500
_MAX_CLIENTS = 64
_MAX_S = 130.0
_PT_INTERP = 3


class ProgramHealth:
    """``launcher`` and the programs' files as the runtime sees them, which is as we see them."""

    def __init__(self, launcher: str, log_dir: str) -> None:
        self._launcher = launcher
        self._log_dir = log_dir
        self._looked: tuple[int, int] | None = None
        self._reason = ""

    def overlay(self, node: NodeState, config: Config, veto: str) -> NodeState:
        """``node`` with what is known at this moment; a few stats, and none where no profile has a program."""
        programs = [profile.exec for profile in config.profiles if profile.exec is not None]
        if not programs:
            return node
        missing = {p.path for p in programs if not _runnable(p.path)}
        missing |= {p.directory for p in programs if p.directory and not os.path.isdir(p.directory)}
        return replace(
            node,
            exec_launcher=self._launcher,
            exec_reason=veto or self._launcher_reason(),
            exec_log_dir=self._log_dir if os.path.isdir(self._log_dir) else "",
            exec_missing=tuple(sorted(missing)),
        )

    def _launcher_reason(self) -> str:
        try:
            status = os.stat(self._launcher)
        except OSError:
            return f"its launcher is not installed at {self._launcher}"
        if (stamp := (status.st_ino, status.st_ctime_ns)) != self._looked:
            self._looked = stamp
            runnable, static = _runnable(self._launcher), is_static(self._launcher)
            self._reason = (
                "" if runnable and static else f"{self._launcher} is not an executable that needs no libraries"
            )
        return self._reason


def _runnable(path: str) -> bool:
    """A regular file that any user may execute: the container's user is not ours."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IXOTH)


def is_static(path: str) -> bool:
    """Whether an ELF file runs without a loader of the image's: no PT_INTERP among its program headers (elf(5))."""
    try:
        with Path(path).open("rb") as stream:
            head = stream.read(4096)
    except OSError:
        return False
    if head[:5] != b"\x7fELF\x02" or len(head) < 64:
        return False
    order = "<" if head[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", head, 32)
    size, count = struct.unpack_from(f"{order}HH", head, 54)
    headers = range(offset, offset + size * count, size or 1)
    if size < 4 or count == 0 or headers[-1] + size > len(head):
        return False
    return all(struct.unpack_from(f"{order}I", head, at)[0] != _PT_INTERP for at in headers)


class ProgramLog:
    """The socket that launchers write to. ``find`` gives the entry of a container id."""

    def __init__(self, log_dir: str, root: Root, find: Callable[[str], Entry | None], metrics: Metrics) -> None:
        self._path = f"{log_dir}/{LOG_SOCKET}"
        self._root = root
        self._find = find
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self) -> None:
        """Raises OSError. Any user may connect: containers do, under theirs."""
        directory = Path(self._path).parent
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        Path(self._path).unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=_MAX_LINE, backlog=128)
        Path(self._path).chmod(0o666)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            Path(self._path).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        entry = self._entry(writer) if self._clients < _MAX_CLIENTS else None
        if entry is None:
            writer.close()
            return
        self._clients += 1
        try:
            async with asyncio.timeout(_MAX_S):
                await self._read(entry, reader)
        except (ConnectionError, TimeoutError, ValueError):
            pass
        finally:
            self._clients -= 1
            writer.close()

    async def _read(self, entry: Entry, reader: asyncio.StreamReader) -> None:
        for _ in range(_MAX_LINES):
            line = (await reader.readline()).decode(errors="replace").rstrip("\n")
            if not line:
                return
            if line.startswith("e "):
                self._ended(entry, line[2:])
                return
            self._log(entry, line[2:])

    def _ended(self, entry: Entry, text: str) -> None:
        if entry.program:
            return
        status, _, took_ms = text.partition(" ")
        entry.program = _shown(f"{status} after {took_ms} ms")
        result = "ok" if status == "exit=0" else "timeout" if status == "timeout" else "failed"
        self._metrics.inc("nri_warmup_programs_total", result=result)
        self._log(entry, f"ended: {entry.program}")

    def _log(self, entry: Entry, text: str) -> None:
        pod = f"{entry.pod.namespace}/{entry.pod.name}"
        logs.info("warm-up program", container=entry.container.id[:12], pod=pod, text=_shown(text))

    def _entry(self, writer: asyncio.StreamWriter) -> Entry | None:
        """The container that the peer is in, if a program was planned for it."""
        peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        try:
            memberships = cgroup.read_memberships(self._root, struct.unpack("3i", peer)[0])
        except KernelError:
            return None
        for candidate in _ids(memberships):
            entry = self._find(candidate)
            if entry is not None and entry.plan.adjustment.mounts and cgroup.belongs_to(memberships, candidate):
                return entry
        return None


def _ids(memberships: tuple[cgroup.Membership, ...]) -> Iterator[str]:
    """What could be a container's id among the components of the paths, in cgroupfs and systemd form."""
    for name in {part.removesuffix(".scope") for member in memberships for part in member.path.split("/")}:
        yield name
        yield name.rsplit("-", 1)[-1]
        yield name.rsplit(":", 1)[-1]


def _shown(text: str) -> str:
    """A container's text in our log: bounded, and without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MAX_SHOWN])
