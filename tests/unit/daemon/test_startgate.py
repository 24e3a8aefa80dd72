"""The host's budget for holding StartContainer: 5 % of wall time, whatever is asked."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_warmup.daemon.startgate import SHARE, WINDOW_S, StartBudget, StartGate


def test_starts_with_a_quiet_minute_saved() -> None:
    assert StartBudget(100.0).left_s(100.0) == pytest.approx(3.0)


def test_refills_by_its_share_and_no_further() -> None:
    budget = StartBudget(0.0)
    assert budget.take(0.0, 10.0) == pytest.approx(3.0)
    assert budget.take(0.0, 1.0) == 0.0
    assert budget.left_s(10.0) == pytest.approx(0.5)
    assert budget.left_s(10_000.0) == pytest.approx(3.0)


def test_time_not_used_comes_back_and_time_overrun_is_paid() -> None:
    budget = StartBudget(0.0)
    budget.give_back(budget.take(0.0, 1.0), 0.25)
    assert budget.left_s(0.0) == pytest.approx(2.75)
    budget.give_back(budget.take(0.0, 1.0), 4.0)
    assert budget.left_s(0.0) == pytest.approx(-1.25)
    assert budget.take(0.0, 1.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5)), max_size=100))
def test_never_more_than_the_share_of_any_stretch(requests: list[tuple[float, float]]) -> None:
    """(pause before, seconds wanted): all that is granted fits the share of time gone by and what was saved."""
    now = 0.0
    budget = StartBudget(now)
    for pause, wanted in requests:
        now += pause
        granted = budget.take(now, wanted)
        now += granted
        budget.give_back(granted, granted)
    assert budget.held_s <= SHARE * (WINDOW_S + now) + 1e-6


def test_gate_waits_for_the_task_or_for_what_is_left() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        gate = StartGate(loop.time)
        quick: asyncio.Task[object] = loop.create_task(asyncio.sleep(0.01))
        endless: asyncio.Task[object] = loop.create_task(asyncio.sleep(1000))
        assert await gate.hold(quick, 1.0)
        began = loop.time()
        assert not await gate.hold(endless, 0.1)
        assert 0.09 <= loop.time() - began < 2
        assert not endless.cancelled()
        gate.budget.take(loop.time(), 100.0)
        began = loop.time()
        assert not await gate.hold(endless, 0.5)
        assert loop.time() - began < 0.4
        endless.cancel()

    asyncio.run(main())


def test_failed_task_does_not_fail_the_start() -> None:
    async def main() -> None:
        async def fail() -> object:
            raise RuntimeError("boom")

        task = asyncio.get_running_loop().create_task(fail())
        assert await StartGate(asyncio.get_running_loop().time).hold(task, 1.0)
        assert isinstance(task.exception(), RuntimeError)

    asyncio.run(main())
