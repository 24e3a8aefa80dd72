"""The one door to procfs, sysfs and cgroupfs: paths below a root that a test can replace by a folder."""

from __future__ import annotations

import os

from nri_warmup.errors import KernelError


class Root:
    """A tree with ``proc`` and ``sys`` in it: ``Root()`` is the machine, ``Root(tmp_path)`` a captured one.

    Relative paths are given as the kernel names them, with or without the leading slash. A missing file is
    ``KernelError`` with ENOENT, a cgroup or device that vanished under an open file ENODEV.
    """

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str] = "/") -> None:
        self.path = os.fspath(path)

    def __repr__(self) -> str:
        return f"Root({self.path!r})"

    def resolve(self, rel: str) -> str:
        """The path on this machine of ``rel`` below the root."""
        return os.path.join(self.path, rel.lstrip("/"))

    def read_bytes(self, rel: str, limit: int = 1 << 24) -> bytes:
        """Whole content, at most ``limit`` bytes."""
        path = self.resolve(rel)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts: list[bytes] = []
                left = limit
                while left > 0:
                    part = os.read(fd, min(left, 1 << 16))
                    if not part:
                        break
                    parts.append(part)
                    left -= len(part)
            finally:
                os.close(fd)
        except OSError as exc:
            raise KernelError(path, exc.errno or 0) from exc
        return b"".join(parts)

    def read_text(self, rel: str) -> str:
        return self.read_bytes(rel).decode("utf-8", "surrogateescape")

    def write_text(self, rel: str, text: str) -> None:
        """One ``write`` of the whole text: interface files take a value in one piece. Never creates a file."""
        path = self.resolve(rel)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, text.encode("utf-8", "surrogateescape"))
            finally:
                os.close(fd)
        except OSError as exc:
            raise KernelError(path, exc.errno or 0) from exc

    def exists(self, rel: str) -> bool:
        return os.path.exists(self.resolve(rel))

    def read_link(self, rel: str) -> str:
        path = self.resolve(rel)
        try:
            return os.readlink(path)
        except OSError as exc:
            raise KernelError(path, exc.errno or 0) from exc

    def read_inode(self, rel: str) -> int:
        path = self.resolve(rel)
        try:
            return os.stat(path).st_ino
        except OSError as exc:
            raise KernelError(path, exc.errno or 0) from exc

    def list_directory(self, rel: str) -> tuple[str, ...]:
        path = self.resolve(rel)
        try:
            return tuple(sorted(os.listdir(path)))
        except OSError as exc:
            raise KernelError(path, exc.errno or 0) from exc
