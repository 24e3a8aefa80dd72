"""A cgroup of its own for a command that we start: made below or beside our own, removed when the command has ended."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass

from nri_warmup.daemon import logs
from nri_warmup.errors import KernelError
from nri_warmup.kernel import cgroup
from nri_warmup.kernel.root import Root

_REMOVE_TRIES = 50
_REMOVE_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCgroup:
    """``directories`` is empty where no memory cgroup can be made: the command runs all the same."""

    directories: tuple[str, ...] = ()

    @property
    def procs(self) -> tuple[str, ...]:
        return tuple(f"{directory}/cgroup.procs" for directory in self.directories)

    @staticmethod
    def make(memory_limit_bytes: int | None) -> LocalCgroup:
        root = Root("/")
        try:
            membership = cgroup.memory_membership(root, cgroup.read_memberships(root, "self"))
            if membership is None:
                return LocalCgroup()
            parent = root.resolve(membership.directory)
            if membership.hierarchy.version == 2:
                parent = _parent_with_memory(root, membership.directory)
            directory = f"{parent}/nri-warmup-exec-{os.getpid()}"
            os.mkdir(directory)
        except (KernelError, OSError) as error:
            if memory_limit_bytes is not None:
                raise KernelError(str(error), errno.ENOTSUP, "no memory cgroup for --memory-limit") from None
            logs.warning("no memory cgroup of its own for the command", error=error)
            return LocalCgroup()
        group = LocalCgroup(directories=(directory,))
        try:
            if memory_limit_bytes is not None:
                name = "memory.max" if membership.hierarchy.version == 2 else "memory.limit_in_bytes"
                with open(f"{directory}/{name}", "w") as stream:
                    stream.write(str(memory_limit_bytes))
        except OSError as error:
            group.remove()
            raise KernelError(f"{directory}/{name}", error.errno or errno.EIO, "the memory limit") from None
        return group

    def remove(self) -> None:
        """The kernel needs a moment after the last process: try for a second, then say what was left."""
        for directory in self.directories:
            for _ in range(_REMOVE_TRIES):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        os.rmdir(directory)
                    except OSError as error:
                        if isinstance(error, FileNotFoundError):
                            break
                        time.sleep(_REMOVE_PAUSE_S)
                        continue
                break
            else:
                logs.warning("cgroup left behind: the command's processes are still in it", path=directory)


def _parent_with_memory(root: Root, directory: str) -> str:
    """v2: the nearest cgroup above us that hands the memory controller to its children (cgroup-v2.rst, "Top-down").

    Our own may do so only while it holds no process (the "no internal process" rule), so mostly it is our parent.
    """
    current = directory
    while current:
        try:
            if "memory" in root.read_text(f"{current}/cgroup.subtree_control").split():
                return root.resolve(current)
        except KernelError:
            break
        current = current.rpartition("/")[0]
    raise KernelError(root.resolve(directory), 95, "no cgroup above hands out the memory controller")
