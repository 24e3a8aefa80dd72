"""How many bytes a warm-up may bring in. Pure.

Pages are charged to the container, so the smallest room on the way from its cgroup to the root counts: the limit (or
memory.high, past which the kernel throttles) less what cannot be reclaimed there: anonymous memory, shared memory,
unreclaimable slab. Page cache in use is no obstacle, the kernel gives it up for new page cache. The host's own room is
what it calls available, less kubelet's eviction threshold and a reserve. Readahead may read past the end of what was
asked for, so that much is left free everywhere.

What warm-ups under way may bring in (``Pledge``) is no longer room, on every level that they share with the new one and
on the host: else each of them would be given the same room and they would evict each other. All of it, also what they
have read already: that is page cache, and would count as free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nri_warmup.model.node import MemoryLevel, NodeState
from nri_warmup.model.profile import NodeLimits
from nri_warmup.units import render_size

NO_LIMIT_BYTES = 1 << 62
"""cgroup v1 says "no limit" as a number a little below 2^63."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pledge:
    """What one running warm-up has brought in and may still bring in, and the memory cgroups it is charged in: paths
    of its ``MemoryLevel``."""

    levels: frozenset[str]
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``budget_bytes`` None: nothing known bounds it. ``reasons`` end with the bound that decided."""

    budget_bytes: int | None
    reasons: tuple[str, ...] = ()


def budget(
    levels: Sequence[MemoryLevel],
    node: NodeState,
    reserve_bytes: int,
    node_reserve_bytes: int = NodeLimits().reserve_bytes,
    pledges: Sequence[Pledge] = (),
) -> Budget:
    """``levels`` from the container up; ``reserve_bytes`` is kept free in each of them. All in bytes."""
    reasons: list[str] = []
    rooms: list[tuple[int, str]] = []
    for level in levels:
        room = _level_room(level, node, reserve_bytes, reasons)
        if room is not None:
            rooms.append(_less(room, sum(pledge.n_bytes for pledge in pledges if level.path in pledge.levels)))
    if not rooms:
        reasons.append("no memory cgroup" if not levels else "no memory limit up to the root")
    available = node.mem_available_bytes
    if available is None:
        reasons.append("the host's available memory is not known")
    else:
        margin = node.eviction_threshold_bytes + node_reserve_bytes + node.readahead_bytes
        text = (
            f"host: {_size(available)} available - {_size(node.eviction_threshold_bytes)} eviction threshold "
            f"- {_size(node_reserve_bytes)} reserve - {_size(node.readahead_bytes)} readahead"
        )
        rooms.append(_less((available - margin, text), sum(pledge.n_bytes for pledge in pledges)))
    if not rooms:
        return Budget(budget_bytes=None, reasons=tuple(reasons))
    least, why = min(rooms, key=lambda room: room[0])
    reasons.append(f"{why} = {_size(max(least, 0))}" + ("" if least > 0 else ", nothing is left"))
    return Budget(budget_bytes=max(least, 0), reasons=tuple(reasons))


def _level_room(level: MemoryLevel, node: NodeState, reserve_bytes: int, reasons: list[str]) -> tuple[int, str] | None:
    """(bytes that fit below the level's limit, how it was worked out), None where the level has no limit."""
    bounds = [
        (value, name)
        for value, name in ((level.limit_bytes, "limit"), (level.high_bytes, "high"))
        if value is not None and value < NO_LIMIT_BYTES
    ]
    if not bounds:
        return None
    bound, name = min(bounds)
    used, kind = level.unreclaimable_bytes, "unreclaimable"
    if used is None:
        used, kind = level.usage_bytes, "in use"
        if used is None:
            used = 0
            reasons.append(f"{level.path}: its use is not known, taken as 0")
        else:
            reasons.append(f"{level.path}: what can be reclaimed is not known, all that is in use counts")
    text = (
        f"{level.path}: {_size(bound)} {name} - {_size(used)} {kind} - {_size(reserve_bytes)} reserve "
        f"- {_size(node.readahead_bytes)} readahead"
    )
    return bound - used - reserve_bytes - node.readahead_bytes, text


def _less(room: tuple[int, str], pledged: int) -> tuple[int, str]:
    left, text = room
    return (left - pledged, f"{text} - {_size(pledged)} of warm-ups under way") if pledged else room


def _size(n_bytes: int) -> str:
    return render_size(n_bytes)
