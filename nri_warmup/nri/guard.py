"""Answers for a handler that is late, even one that holds the event loop.

A plain handler that computes, sleeps or waits for a disk keeps the loop from doing anything; a thread then sends the
reply before the runtime's timer ends the connection. The thread sleeps until a handler is armed and parks again when
none was for a while, so that an idle plugin has no wake-ups.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

_POLL_S = 0.2
_LEAST_POLL_S = 0.005
_IDLE_ROUNDS = 10


class Guarded(Protocol):
    """A call under guard: ``on_late`` runs in the guard's thread at ``deadline`` (monotonic) unless disarmed before."""

    @property
    def deadline(self) -> float: ...

    def on_late(self) -> None: ...


class DeadlineGuard:
    """Whoever takes a call out, the handler's side by ``disarm`` or the thread, is the one to reply."""

    def __init__(self) -> None:
        # Adding to and popping from a dict are atomic, which is all the locking that arming an event may cost.
        self._armed: dict[Guarded, None] = {}
        self._wake = threading.Event()
        self._parked = True
        self._poll_s = _POLL_S
        self._thread: threading.Thread | None = None
        self._closed = False

    def arm(self, call: Guarded, budget_s: float) -> None:
        """``budget_s`` is the time until the call's deadline: a sleeping thread has to look again before it is over."""
        if budget_s < 4 * self._poll_s:
            self._poll_s = max(budget_s / 4, _LEAST_POLL_S)
        self._armed[call] = None
        if self._parked:
            self._unpark()

    def disarm(self, call: Guarded) -> bool:
        """True for the one who is to reply; False where the thread has replied already."""
        return self._armed.pop(call, self) is None

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def _unpark(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="nri-deadline", daemon=True)
            self._thread.start()
        self._wake.set()

    def _watch(self) -> None:
        idle = 0
        while not self._closed:
            self._parked = False
            call = min(list(self._armed), key=lambda each: each.deadline, default=None)
            if call is None:
                idle += 1
                if idle > _IDLE_ROUNDS:
                    self._park()
                    idle = 0
                else:
                    time.sleep(self._poll_s)
                continue
            idle = 0
            wait = call.deadline - time.monotonic()
            if wait > 0:
                time.sleep(min(wait, self._poll_s))
            elif self.disarm(call):
                call.on_late()

    def _park(self) -> None:
        self._wake.clear()
        self._parked = True
        if not self._armed:
            self._wake.wait()
