"""The budget is the smallest room on the way to the root, and says which it was."""

from __future__ import annotations

import pytest

from nri_warmup.model.node import MemoryLevel, NodeState
from nri_warmup.policy.memory import Budget, Pledge, budget

MI = 1 << 20
NODE = NodeState(mem_available_bytes=10_000 * MI, eviction_threshold_bytes=100 * MI, readahead_bytes=8 * MI)


def level(path: str, **values: int | None) -> MemoryLevel:
    return MemoryLevel(path=path, **values)


def test_own_limit_decides() -> None:
    found = budget([level("/pod/c", limit_bytes=1024 * MI, unreclaimable_bytes=100 * MI)], NODE, 64 * MI)
    assert found == Budget(
        budget_bytes=852 * MI,
        reasons=("/pod/c: 1Gi limit - 100Mi unreclaimable - 64Mi reserve - 8Mi readahead = 852Mi",),
    )


def test_page_cache_in_use_is_no_obstacle() -> None:
    levels = [level("/c", limit_bytes=1024 * MI, usage_bytes=1000 * MI, unreclaimable_bytes=0)]
    assert budget(levels, NODE, 0).budget_bytes == 1016 * MI


def test_an_ancestor_decides() -> None:
    levels = [
        level("/pod/c", limit_bytes=4096 * MI, unreclaimable_bytes=0),
        level("/pod", limit_bytes=2048 * MI, unreclaimable_bytes=1024 * MI),
        level("/", limit_bytes=None),
    ]
    found = budget(levels, NODE, 0)
    assert found.budget_bytes == 1016 * MI
    assert found.reasons[-1].startswith("/pod: 2Gi limit")


def test_high_below_the_limit_decides() -> None:
    levels = [level("/c", limit_bytes=1024 * MI, high_bytes=512 * MI, unreclaimable_bytes=0)]
    found = budget(levels, NODE, 0)
    assert found.budget_bytes == 504 * MI
    assert "512Mi high" in found.reasons[-1]


def test_the_host_decides() -> None:
    node = NodeState(mem_available_bytes=1000 * MI, eviction_threshold_bytes=100 * MI, readahead_bytes=0)
    found = budget([level("/c", limit_bytes=4096 * MI, unreclaimable_bytes=0)], node, 0, 512 * MI)
    assert found.budget_bytes == 388 * MI
    assert found.reasons == ("host: 1000Mi available - 100Mi eviction threshold - 512Mi reserve - 0 readahead = 388Mi",)


def test_nothing_left_is_zero() -> None:
    found = budget([level("/c", limit_bytes=100 * MI, unreclaimable_bytes=99 * MI)], NODE, 64 * MI)
    assert found.budget_bytes == 0
    assert found.reasons[-1].endswith("= 0, nothing is left")


@pytest.mark.parametrize("no_limit", [None, 9223372036854771712, (1 << 63) - 1])
def test_no_limit_in_any_form(no_limit: int | None) -> None:
    found = budget([level("/c", limit_bytes=no_limit, unreclaimable_bytes=0)], NODE, 0, 0)
    assert found.budget_bytes == 9892 * MI
    assert found.reasons[0] == "no memory limit up to the root"


def test_unknown_use() -> None:
    found = budget([level("/c", limit_bytes=1024 * MI, usage_bytes=1000 * MI)], NODE, 0)
    assert found.budget_bytes == 16 * MI
    assert "all that is in use counts" in found.reasons[0]
    found = budget([level("/c", limit_bytes=1024 * MI)], NODE, 0)
    assert found.budget_bytes == 1016 * MI
    assert "taken as 0" in found.reasons[0]


def test_nothing_known() -> None:
    found = budget([], NodeState(), 0)
    assert found.budget_bytes is None
    assert found.reasons == ("no memory cgroup", "the host's available memory is not known")


def test_what_others_under_way_want_is_no_room_on_the_levels_they_share() -> None:
    levels = [
        level("/pod/c", limit_bytes=4096 * MI, unreclaimable_bytes=0),
        level("/pod", limit_bytes=2048 * MI, unreclaimable_bytes=0),
    ]
    sibling = Pledge(levels=frozenset({"/pod/other", "/pod"}), n_bytes=1000 * MI)
    stranger = Pledge(levels=frozenset({"/pod2"}), n_bytes=500 * MI)
    assert budget(levels, NODE, 0, 0).budget_bytes == 2040 * MI
    assert budget(levels, NODE, 0, 0, [stranger]).budget_bytes == 2040 * MI
    found = budget(levels, NODE, 0, 0, [stranger, sibling])
    assert found.budget_bytes == 1040 * MI
    assert found.reasons[-1] == (
        "/pod: 2Gi limit - 0 unreclaimable - 0 reserve - 8Mi readahead - 1000Mi of warm-ups under way = 1.016Gi"
    )


def test_all_share_the_host() -> None:
    pledges = [Pledge(levels=frozenset({f"/p{n}"}), n_bytes=4000 * MI) for n in range(3)]
    assert budget((), NODE, 0, 0, pledges[:2]).budget_bytes == (10_000 - 108 - 8000) * MI
    found = budget((), NODE, 0, 0, pledges)
    assert found.budget_bytes == 0
    assert found.reasons[-1].endswith("- 11.72Gi of warm-ups under way = 0, nothing is left")
