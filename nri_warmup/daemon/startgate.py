"""Holding StartContainer: bounded for one container by its plan, and for the host by a share of wall time, since the
runtime's lock is held with it and every other pod of the node waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SHARE = 0.05
"""Of wall time."""
WINDOW_S = 60.0
"""What is not used is saved for so long: 3 s of holding after a quiet minute, no more."""


class StartBudget:
    """A bucket that fills at SHARE seconds a second; the clock is handed in.

    Never spends what is not there: ``take`` gives what may be held.
    """

    def __init__(self, now_s: float, *, share: float = SHARE, window_s: float = WINDOW_S) -> None:
        self._share = share
        self._most_s = share * window_s
        self._left_s = self._most_s
        self._at_s = now_s
        self.held_s = 0.0
        """All that was ever held."""

    def left_s(self, now_s: float) -> float:
        self._left_s = min(self._most_s, self._left_s + max(0.0, now_s - self._at_s) * self._share)
        self._at_s = now_s
        return self._left_s

    def take(self, now_s: float, wanted_s: float) -> float:
        """Seconds that may be held, at most ``wanted_s``; they count as used until ``give_back``."""
        granted = max(0.0, min(wanted_s, self.left_s(now_s)))
        self._left_s -= granted
        self.held_s += granted
        return granted

    def give_back(self, granted_s: float, used_s: float) -> None:
        """The hold was over sooner (or, the loop being late, later) than granted."""
        self._left_s += granted_s - used_s
        self.held_s += used_s - granted_s


class StartGate:
    """Holds one after the other and keeps the account."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.budget = StartBudget(clock())

    def left_s(self) -> float:
        return self.budget.left_s(self._clock())

    async def hold(self, task: asyncio.Task[object], hold_s: float) -> bool:
        """Wait for ``task``, as long as plan and host allow. True where it ended in time; its error is not raised."""
        began_s = self._clock()
        granted_s = self.budget.take(began_s, hold_s)
        try:
            if granted_s > 0:
                await asyncio.wait({task}, timeout=granted_s)
        finally:
            self.budget.give_back(granted_s, self._clock() - began_s)
        return task.done()
