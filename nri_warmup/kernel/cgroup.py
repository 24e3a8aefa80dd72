"""Control groups of a process: where they are mounted, cgroup.procs of each hierarchy, memory levels up to the root.

v1, hybrid and v2. Paths come from /proc/PID/cgroup and the reader's own mountinfo, never from a spec. Every path
returned is one below the ``Root`` ("sys/fs/cgroup/…"), so that it can be handed back to it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum

from nri_warmup.errors import KernelError
from nri_warmup.kernel.namespaces import unescape
from nri_warmup.kernel.root import Root

_V1_UNLIMITED = 1 << 62
"""v1 writes "no limit" as the largest page counter in bytes, 9223372036854771712 with 4 KiB pages."""


class Max(Enum):
    """The value ``max``: a limit that is none."""

    MAX = "max"


class CgroupVanished(KernelError):
    """The directory is gone: the container ended. A missing *file* in a directory that is there is another answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """One mounted cgroup hierarchy. ``controllers`` is empty for v2; a named v1 hierarchy has ``name=systemd`` in
    it."""

    mount_point: str
    mount_root: str
    controllers: frozenset[str]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Where one process is in one hierarchy; ``directory`` is its cgroup below the Root."""

    hierarchy: Hierarchy
    path: str
    directory: str

    @property
    def procs(self) -> str:
        return f"{self.directory}/cgroup.procs"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """One level of the memory hierarchy. None: no such file, or no limit. ``unreclaimable_bytes``: anonymous memory,
    shmem, and slab and other kernel memory that cannot be reclaimed, of the whole subtree."""

    path: str
    limit_bytes: int | None = None
    high_bytes: int | None = None
    usage_bytes: int | None = None
    unreclaimable_bytes: int | None = None


def parse_mounts(mountinfo: str) -> tuple[Hierarchy, ...]:
    """Hierarchies in a mountinfo file; of several mounts of one, the first that shows all of it."""
    found: dict[frozenset[str], Hierarchy] = {}
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if not separator or len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        options = frozenset(after[2].split(","))
        v2 = after[0] == "cgroup2"
        controllers = (
            frozenset() if v2 else frozenset(o for o in options if o not in ("rw", "ro", "xattr", "clone_children"))
        )
        controllers = frozenset(c for c in controllers if not c.startswith("release_agent="))
        hierarchy = Hierarchy(
            mount_point=unescape(before[4]),
            mount_root=unescape(before[3]),
            controllers=controllers,
            version=2 if v2 else 1,
        )
        known = found.get(controllers)
        if known is None or (known.mount_root != "/" and hierarchy.mount_root == "/"):
            found[controllers] = hierarchy
    return tuple(found.values())


def read_hierarchies(root: Root) -> tuple[Hierarchy, ...]:
    return parse_mounts(root.read_text("proc/self/mountinfo"))


def parse_memberships(text: str, hierarchies: tuple[Hierarchy, ...]) -> tuple[Membership, ...]:
    """/proc/PID/cgroup against the mounted hierarchies; one that is not mounted, or lies outside what is, is left
    out."""
    memberships = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        path = path.removesuffix(" (deleted)")
        controllers = frozenset(names.split(",")) if names else frozenset[str]()
        for hierarchy in hierarchies:
            if hierarchy.version == 2 and number == "0" and not names:
                pass
            elif hierarchy.version != 1 or not names or hierarchy.controllers != controllers:
                continue
            directory = _directory(hierarchy, path)
            if directory is not None:
                memberships.append(Membership(hierarchy=hierarchy, path=path, directory=directory))
    return tuple(memberships)


def _directory(hierarchy: Hierarchy, path: str) -> str | None:
    below = path
    if hierarchy.mount_root != "/":
        # A bind of a part of the hierarchy, as inside a container: only what is below that part can be reached.
        prefix = hierarchy.mount_root.rstrip("/")
        if path != prefix and not path.startswith(prefix + "/"):
            return None
        below = path[len(prefix) :]
    if ".." in below.split("/"):  # outside our cgroup namespace
        return None
    return (hierarchy.mount_point.rstrip("/") + "/" + below.strip("/")).strip("/")


def read_memberships(root: Root, pid: int | str) -> tuple[Membership, ...]:
    """Every hierarchy that ``pid`` (or ``self``) is in and that is mounted here."""
    return parse_memberships(root.read_text(f"proc/{pid}/cgroup"), read_hierarchies(root))


def memory_membership(root: Root, memberships: tuple[Membership, ...]) -> Membership | None:
    """The one that page cache is charged in: the v1 memory hierarchy where there is one, else v2 with its
    controller."""
    for membership in memberships:
        if "memory" in membership.hierarchy.controllers:
            return membership
    for membership in memberships:
        if membership.hierarchy.version == 2 and has_memory_controller(root, membership.hierarchy):
            return membership
    return None


def has_memory_controller(root: Root, hierarchy: Hierarchy) -> bool:
    """On v2 the controllers that can be used at all are in the mounted root's cgroup.controllers."""
    if hierarchy.version == 1:
        return "memory" in hierarchy.controllers
    try:
        return "memory" in root.read_text(f"{hierarchy.mount_point}/cgroup.controllers").split()
    except KernelError:
        return False


def charged_directory(root: Root, membership: Membership) -> str:
    """Which cgroup the memory of a process there is charged to. On v2 the nearest one up from its own that has the
    controller: crun puts a container's processes into a cgroup below its scope that has none (cgroup-v2.rst,
    "Top-down Constraint")."""
    directory = membership.directory
    if membership.hierarchy.version == 2:
        top = membership.hierarchy.mount_point.strip("/") + "/"
        while directory.startswith(top) and not root.exists(f"{directory}/memory.current"):
            directory = directory.rpartition("/")[0]
    return directory


def read_version(root: Root) -> int:
    """2, 1, or 0 where no memory controller is mounted."""
    hierarchies = read_hierarchies(root)
    if any(h.version == 1 and "memory" in h.controllers for h in hierarchies):
        return 1
    return 2 if any(h.version == 2 and has_memory_controller(root, h) for h in hierarchies) else 0


def belongs_to(memberships: tuple[Membership, ...], container_id: str) -> bool:
    """Whether a component of any of the paths is this container's, in cgroupfs (``ID``) or systemd form
    (``cri-…-ID.scope``).

    Nested cgroups below the container's count as its own.
    """
    if not container_id:
        return False
    for membership in memberships:
        for component in membership.path.split("/"):
            name = component.removesuffix(".scope")
            if name == container_id or name.endswith(("-" + container_id, ":" + container_id)):
                return True
    return False


def read_value(root: Root, directory: str, name: str) -> int | Max | None:
    """A number, Max.MAX, or None where the file is missing. Raises CgroupVanished when the directory is gone."""
    try:
        text = root.read_text(f"{directory}/{name}").strip()
    except KernelError as exc:
        if exc.errno == errno.ENODEV or (exc.errno == errno.ENOENT and not root.exists(directory)):
            raise CgroupVanished(root.resolve(directory), errno.ENODEV) from exc
        if exc.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            return None
        raise
    if text == "max":
        return Max.MAX
    try:
        value = int(text)
    except ValueError:
        raise KernelError(root.resolve(f"{directory}/{name}"), errno.EINVAL, f"not a number: {text[:40]!r}") from None
    return Max.MAX if value >= _V1_UNLIMITED else value


def read_stat(root: Root, directory: str) -> dict[str, int]:
    """memory.stat as a mapping; empty where there is none."""
    try:
        text = root.read_text(f"{directory}/memory.stat")
    except KernelError as exc:
        if exc.errno == errno.ENODEV or (exc.errno == errno.ENOENT and not root.exists(directory)):
            raise CgroupVanished(root.resolve(directory), errno.ENODEV) from exc
        if exc.errno == errno.ENOENT:
            return {}
        raise
    pairs = (line.split(" ") for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read_memory_levels(root: Root, membership: Membership) -> tuple[MemoryReading, ...]:
    """From the process's own cgroup up to, and without, the root of the hierarchy."""
    hierarchy = membership.hierarchy
    top = hierarchy.mount_point.strip("/")
    directory = membership.directory
    levels = []
    while directory.startswith(top + "/"):
        levels.append(_read_level(root, directory, hierarchy.version))
        directory = directory.rpartition("/")[0]
    return tuple(levels)


def _read_level(root: Root, directory: str, version: int) -> MemoryReading:
    stat = read_stat(root, directory)
    if version == 2:
        limit, high, usage = "memory.max", "memory.high", "memory.current"
        unreclaimable = _v2_unreclaimable(stat)
    else:
        limit, high, usage = "memory.limit_in_bytes", "", "memory.usage_in_bytes"
        kernel = _number(read_value(root, directory, "memory.kmem.usage_in_bytes"))
        # v1 does not say how much of its kernel memory is reclaimable slab; all of it is counted, to be safe.
        unreclaimable = stat.get("total_rss", 0) + stat.get("total_shmem", 0) + (kernel or 0)
    return MemoryReading(
        path=root.resolve(directory),
        limit_bytes=_number(read_value(root, directory, limit)),
        high_bytes=_number(read_value(root, directory, high)) if high else None,
        usage_bytes=_number(read_value(root, directory, usage)),
        unreclaimable_bytes=unreclaimable if stat else None,
    )


def _v2_unreclaimable(stat: dict[str, int]) -> int:
    if "kernel" in stat:  # Linux 5.18: all kernel memory of the cgroup
        kernel = max(0, stat["kernel"] - stat.get("slab_reclaimable", 0))
    else:
        kernel = sum(stat.get(key, 0) for key in ("slab_unreclaimable", "kernel_stack", "pagetables", "percpu", "sock"))
    return stat.get("anon", 0) + stat.get("shmem", 0) + kernel


def _number(value: int | Max | None) -> int | None:
    return value if isinstance(value, int) else None
