"""One warm-up to be done, as the daemon orders it. A value; what the worker is told of it is a ``wire.Task``."""

from __future__ import annotations

from dataclasses import dataclass

from nri_warmup.model.profile import Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmJob:
    """Bytes and seconds. ``pid`` 0 is the host itself.

    ``budget_bytes`` is what may be brought in at most, readahead overshoot included; None is no bound. ``max_bytes``
    bounds what is wanted. ``cgroup_procs`` are files to join instead of the pid's own cgroups. ``chroot`` is the
    rootfs as a path in the target's mount namespace where the target has not pivoted into it yet. ``cpus`` and
    ``nodes``, where given, bind the worker and with it the placement of the page cache. ``method`` ``sendfile`` keeps
    it from populating mappings. ``group`` is whose job it is (a namespace): one that has left too many workers behind
    that do not die gets no more.
    """

    id: str
    group: str = ""
    pid: int = 0
    patterns: tuple[str, ...] = ()
    residency: Residency = Residency.INACTIVE
    max_bytes: int = 1 << 44
    max_files: int = 10_000
    budget_bytes: int | None = None
    deadline_s: float = 300.0
    join_cgroup: bool = True
    cgroup_procs: tuple[str, ...] = ()
    chroot: str = ""
    enter_namespaces: bool = True
    readahead_bytes: int = 128 << 10
    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    method: str = "auto"
    measure_only: bool = False
    """Say what is resident, and read nothing."""
