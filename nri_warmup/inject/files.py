"""Finding the files that patterns name, and opening them so that nothing but the regular file looked at is ever opened.

Everything here is a tenant's: names, links, directory sizes, file systems. Paths are resolved below a root descriptor
with openat2 (RESOLVE_IN_ROOT, no magic links), opened O_PATH, looked at, and only then opened for real *through that
descriptor* (/proc/self/fd of the host's procfs), so swapping the name in between changes nothing. Expansion is bounded
in entries, depth, time and files.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from nri_warmup.errors import KernelError
from nri_warmup.kernel import syscalls

MAX_ENTRIES = 200_000
MAX_DEPTH = 64
MAX_SECONDS = 10.0

PSEUDO_FILE_SYSTEMS = {
    # linux/magic.h: files of these are not data, reading them can hang, act or lie
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x0027E0EB: "cgroup",
    0x63677270: "cgroup2",
    0x1CD1: "devpts",
    0x64626720: "debugfs",
    0x74726163: "tracefs",
    0x73636673: "securityfs",
    0xCAFE4A11: "bpf",
    0x62656570: "configfs",
    0x6165676C: "pstore",
    0xDE5E81E4: "efivarfs",
    0xF97CFF8C: "selinuxfs",
    0x43415D53: "smackfs",
    0x5A3C69F0: "apparmorfs",
    0x19800202: "mqueue",
    0x42494E4D: "binfmt_misc",
    0x6E736673: "nsfs",
    0x67596969: "rpc_pipefs",
    0x09041934: "anon_inodefs",
    0x534F434B: "sockfs",
    0x50495045: "pipefs",
    0x65735543: "fusectl",
    0x0187: "autofs",
    0x958458F6: "hugetlbfs",
    0x07655821: "resctrl",
}

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISLNK, "a symbolic link"),
)
_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS


class Refused(Exception):
    """Why a path is not warmed. ``state`` is a value of model.warmset.FileState."""

    def __init__(self, state: str, detail: str) -> None:
        super().__init__(detail)
        self.state = state
        self.detail = detail


class Found:
    """A regular file that is wanted, as it was when the pattern was expanded."""

    __slots__ = ("device", "inode", "path", "size")

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.path = path
        self.size = status.st_size
        self.device = status.st_dev
        self.inode = status.st_ino


class Bounds:
    """What one expansion may cost, all patterns together."""

    __slots__ = ("depth", "entries", "files", "seconds")

    def __init__(
        self, files: int, entries: int = MAX_ENTRIES, depth: int = MAX_DEPTH, seconds: float = MAX_SECONDS
    ) -> None:
        self.files = files
        self.entries = entries
        self.depth = depth
        self.seconds = seconds


class _Exhausted(Exception):
    pass


class Finder:
    """Files below ``root`` (an O_PATH directory). ``self_fd`` is the host's /proc/self/fd, opened before it was
    left."""

    def __init__(self, root: int, self_fd: int, bounds: Bounds) -> None:
        self._root = root
        self._self_fd = self_fd
        self._bounds = bounds
        self._entries = 0
        self._hits = 0
        begin = time.monotonic()
        self._until = begin + bounds.seconds
        self._list_until = begin + bounds.seconds / 2  # the other half is for looking at what was listed
        self._full = ""
        """Why no directory is listed any more."""
        self._seen: set[tuple[int, int]] = set()
        self.found: list[Found] = []
        self.refused: list[tuple[str, str, str]] = []
        """(path, state, detail), at most ``bounds.files`` of them."""
        self.notes: list[str] = []

    def expand(self, patterns: tuple[str, ...], *, literal: bool = False) -> None:
        """Fill ``found``: by pattern as given, within one pattern small files first and then by name, each inode
        once."""
        for pattern in patterns:
            begin = len(self.found)
            try:
                if literal or not has_magic(pattern):
                    self._take(pattern, named=True)
                else:
                    self._expand_one(pattern)
            except _Exhausted as exc:
                self.notes.append(f"{pattern}: expansion stopped: {exc}")
                return
            finally:
                self.found[begin:] = sorted(self.found[begin:], key=_order)
        if self._full:
            self.notes.append(f"not every directory was listed: {self._full}")

    def _expand_one(self, pattern: str) -> None:
        before = self._hits + len(self.refused)
        components = tuple(part for part in pattern.split("/") if part not in ("", "."))
        self._walk("/", components, 0)
        if before == self._hits + len(self.refused) and not self._full:
            self._refuse(pattern, "vanished", "no file matches")

    def _walk(self, directory: str, components: tuple[str, ...], depth: int) -> None:
        while components and not has_magic(components[0]):
            directory = _join(directory, components[0])
            components = components[1:]
            if not components:
                self._take(directory, named=False)
                return
        if depth > self._bounds.depth:
            raise _Exhausted(f"deeper than {self._bounds.depth} directories")
        head, rest = components[0], components[1:]
        recursive = head == "**"
        if recursive:
            while rest and rest[0] == "**":
                rest = rest[1:]
            if rest:
                self._walk(directory, rest, depth + 1)
        for name, is_directory, is_link in self._list(directory):
            path = _join(directory, name)
            if recursive:
                if is_directory:
                    if not name.startswith("."):
                        self._walk(path, components, depth + 1)
                elif not rest and not name.startswith("."):
                    self._take(path, named=False)
            elif matches(name, head):
                if not rest:
                    if not is_directory:
                        self._take(path, named=False)
                elif is_directory or is_link:
                    self._walk(path, rest, depth + 1)

    def _list(self, directory: str) -> list[tuple[str, bool, bool]]:
        """(name, is a directory, is a link) of every entry, sorted. A directory that cannot be listed has none; of an
        enormous one, what came first is used."""
        if self._full:
            return []
        try:
            fd = syscalls.openat2(self._root, directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK, _IN_ROOT)
        except KernelError as exc:
            if exc.errno in (errno.EACCES, errno.EPERM):
                self._refuse(directory, "unreadable", "the directory cannot be listed")
            return []
        entries: list[tuple[str, bool, bool]] = []
        try:
            kind = PSEUDO_FILE_SYSTEMS.get(syscalls.fstatfs_type(fd))
            if kind is not None:
                self._refuse(directory, "refused", f"on {kind}")
                return []
            with os.scandir(fd) as listing:
                for entry in listing:
                    if not self._may_list():
                        break
                    entries.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()))
        except (OSError, KernelError) as exc:
            self._refuse(directory, "failed", _name(exc.errno))
        finally:
            os.close(fd)
        entries.sort()
        return entries

    def _may_list(self) -> bool:
        """Whether one more entry may be looked at; once not, never again."""
        self._entries += 1
        if self._entries > self._bounds.entries:
            self._full = f"more than {self._bounds.entries} directory entries"
        elif time.monotonic() > self._list_until:
            self._full = f"more than {self._bounds.seconds / 2:g} s"
        return not self._full

    def _take(self, path: str, *, named: bool) -> None:
        if time.monotonic() > self._until:
            raise _Exhausted(f"more than {self._bounds.seconds:g} s")
        try:
            fd, status = self.look(path)
        except Refused as refusal:
            if named or refusal.state != "refused" or not refusal.detail.startswith("a directory"):
                self._refuse(path, refusal.state, refusal.detail)
            return
        os.close(fd)
        self._hits += 1
        identity = (status.st_dev, status.st_ino)
        if identity in self._seen:
            return
        if len(self.found) >= self._bounds.files:
            raise _Exhausted(f"more than {self._bounds.files} files")
        self._seen.add(identity)
        self.found.append(Found(path, status))

    def _refuse(self, path: str, state: str, detail: str) -> None:
        if len(self.refused) >= self._bounds.files:
            raise _Exhausted(f"more than {self._bounds.files} paths that cannot be warmed")
        self.refused.append((path, state, detail))

    def look(self, path: str) -> tuple[int, os.stat_result]:
        """An O_PATH descriptor of a regular file on a real file system, and its status. Raises Refused."""
        if not path.startswith("/"):
            raise Refused("refused", "not an absolute path")
        try:
            fd = syscalls.openat2(self._root, path, os.O_PATH, _IN_ROOT)
        except KernelError as exc:
            raise _refusal(exc.errno) from None
        try:
            status = os.fstat(fd)
            for test, kind in _KINDS:
                if test(status.st_mode):
                    hint = f"; write {path.rstrip('/')}/**" if test is stat.S_ISDIR else ""
                    raise Refused("refused", kind + hint)
            pseudo = PSEUDO_FILE_SYSTEMS.get(syscalls.fstatfs_type(fd))
            if pseudo is not None:
                raise Refused("refused", f"on {pseudo}")
        except (OSError, KernelError) as exc:
            os.close(fd)
            raise _refusal(exc.errno) from None
        except Refused:
            os.close(fd)
            raise
        return fd, status

    def open(self, found: Found) -> tuple[int, os.stat_result]:
        """The file itself, for reading. Raises Refused, also when the path is another file by now."""
        path_fd, status = self.look(found.path)
        try:
            if (status.st_dev, status.st_ino) != (found.device, found.inode):
                raise Refused("vanished", "replaced by another file meanwhile")
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            try:
                fd = os.open(str(path_fd), flags | os.O_NOATIME, dir_fd=self._self_fd)
            except PermissionError:  # only the owner may leave no access time
                fd = os.open(str(path_fd), flags, dir_fd=self._self_fd)
        except OSError as exc:
            raise _refusal(exc.errno) from None
        finally:
            os.close(path_fd)
        return fd, status


def _name(number: int | None) -> str:
    return errno.errorcode.get(number or 0, str(number))


def _refusal(number: int | None) -> Refused:
    if number in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return Refused("vanished", "no such file")
    if number in (errno.EACCES, errno.EPERM):
        return Refused("unreadable", _name(number))
    if number in (errno.ELOOP, errno.EXDEV, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.ENAMETOOLONG):
        return Refused("refused", _name(number))
    return Refused("failed", _name(number))


SMALL = 2 << 20


def _order(found: Found) -> tuple[bool, str]:
    return (found.size >= SMALL, found.path)


def _join(directory: str, name: str) -> str:
    return directory.rstrip("/") + "/" + name


def has_magic(text: str) -> bool:
    return "*" in text or "?" in text or "[" in text


def matches(name: str, pattern: str) -> bool:
    """A shell glob on one path component, in time of at most length times length: patterns are a tenant's too.

    ``*`` and ``?`` do not match a leading dot. ``[…]`` knows ranges and ``!``; an unclosed one is a plain bracket.
    """
    if name.startswith(".") and not pattern.startswith("."):
        return False
    position = place = 0
    star = mark = -1
    while position < len(name):
        if place < len(pattern) and pattern[place] == "*":
            star, mark = place, position
            place += 1
            continue
        width = _matches_one(name[position], pattern, place)
        if width:
            place += width
            position += 1
        elif star >= 0:
            mark += 1
            place, position = star + 1, mark
        else:
            return False
    return pattern[place:].strip("*") == ""


def _matches_one(char: str, pattern: str, place: int) -> int:
    """Length of the element at ``place`` if it matches ``char``, else 0."""
    if place >= len(pattern):
        return 0
    element = pattern[place]
    if element == "?":
        return 1
    if element != "[":
        return 1 if element == char else 0
    begin = place + 1
    negated = pattern[begin : begin + 1] in ("!", "^")
    begin += negated
    end = pattern.find("]", begin + 1)
    if end < 0:
        return 1 if char == "[" else 0
    hit = False
    i = begin
    while i < end:
        if i + 2 < end and pattern[i + 1] == "-":
            hit = hit or pattern[i] <= char <= pattern[i + 2]
            i += 3
        else:
            hit = hit or pattern[i] == char
            i += 1
    return end - place + 1 if hit != negated else 0
