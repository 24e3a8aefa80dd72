"""What the kernel has to say of this host and of one container's cgroup, sampled before a decision that needs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLevel:
    """One memory cgroup on the way from the container to the root, as read. None: no such file, or no limit.

    ``unreclaimable_bytes`` is anonymous memory + shmem + unreclaimable slab and kernel memory of the subtree.
    """

    path: str
    limit_bytes: int | None = None
    high_bytes: int | None = None
    usage_bytes: int | None = None
    unreclaimable_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The host: memory available now (bytes), readahead of the device in question (bytes), cgroup layout."""

    mem_total_bytes: int = 0
    mem_available_bytes: int | None = None
    eviction_threshold_bytes: int = 100 << 20
    readahead_bytes: int = 128 << 10
    cgroup_version: int = 0
    """2, 1, or 0 where there is no memory controller at all."""
    hook_usable: bool = False
    hook_reason: str = "the OCI hook is not installed"
    hook_path: str = ""
    """The hook's executable as the runtime sees it, where ``hook_usable``."""
    hook_running: bool = False
    """The event came from our own OCI hook, which holds the entrypoint already: nothing is left to inject."""
    control_socket: str = "/run/nri-warmup/control.sock"
    can_hold: bool = False
    """Pages can be locked for a container (``residency: held``)."""
    exec_launcher: str = ""
    """The launcher of warm-up programs as the runtime sees it; usable where ``exec_reason`` is empty."""
    exec_reason: str = "its launcher is not installed"
    exec_log_dir: str = ""
    """The directory with the socket that their output goes to; empty where there is none."""
    exec_missing: tuple[str, ...] = ()
    """Programs and directories of the operator's that are not there, or cannot be run."""
    start_gate_left_s: float | None = None
    """What is left of the host's budget for holding StartContainer; None where nothing of it has been used."""
