"""Reads what decisions need to know of the host: memory, cgroup layout, the memory levels above one process."""

from __future__ import annotations

from nri_warmup.errors import KernelError
from nri_warmup.kernel import cgroup
from nri_warmup.kernel.root import Root
from nri_warmup.model.node import MemoryLevel, NodeState

_DEFAULT_READAHEAD_BYTES = 128 << 10


def read_node_state(root: Root) -> NodeState:
    """Never raises: what cannot be read stays unknown."""
    total, available = _meminfo(root)
    try:
        version = cgroup.read_version(root)
    except KernelError:
        version = 0
    return NodeState(
        mem_total_bytes=total or 0,
        mem_available_bytes=available,
        readahead_bytes=_readahead(root),
        cgroup_version=version,
    )


def _meminfo(root: Root) -> tuple[int | None, int | None]:
    try:
        rows = [line.split() for line in root.read_text("proc/meminfo").splitlines()]
    except KernelError:
        return None, None
    values = {row[0]: int(row[1]) << 10 for row in rows if len(row) == 3 and row[1].isdigit()}
    return values.get("MemTotal:"), values.get("MemAvailable:")


def _readahead(root: Root) -> int:
    """The largest read_ahead_kb of the host's disks, in bytes: what a read may overshoot its end by."""
    largest = 0
    try:
        devices = root.list_directory("sys/block")
    except KernelError:
        return _DEFAULT_READAHEAD_BYTES
    for device in devices:
        try:
            largest = max(largest, int(root.read_text(f"sys/block/{device}/queue/read_ahead_kb")) << 10)
        except (KernelError, ValueError):
            continue
    return largest or _DEFAULT_READAHEAD_BYTES


def read_memory_levels(root: Root, pid: int) -> tuple[MemoryLevel, ...]:
    """From the process's own memory cgroup up to the root; empty where there is no memory controller.

    Raises KernelError where the process or its cgroup is gone.
    """
    return _levels(root, cgroup.memory_membership(root, cgroup.read_memberships(root, pid)))


def read_levels_of(root: Root, directory: str) -> tuple[MemoryLevel, ...]:
    """The same for a cgroup directory of the memory hierarchy; empty for a directory of another one."""
    for hierarchy in cgroup.read_hierarchies(root):
        inside = directory.startswith(hierarchy.mount_point.rstrip("/") + "/") or directory == hierarchy.mount_point
        if inside and cgroup.has_memory_controller(root, hierarchy):
            path = directory[len(hierarchy.mount_point) :] or "/"
            return _levels(root, cgroup.Membership(hierarchy=hierarchy, path=path, directory=directory.strip("/")))
    return ()


def _levels(root: Root, membership: cgroup.Membership | None) -> tuple[MemoryLevel, ...]:
    if membership is None:
        return ()
    return tuple(
        MemoryLevel(
            path=level.path,
            limit_bytes=level.limit_bytes,
            high_bytes=level.high_bytes,
            usage_bytes=level.usage_bytes,
            unreclaimable_bytes=level.unreclaimable_bytes,
        )
        for level in cgroup.read_memory_levels(root, membership)
    )
