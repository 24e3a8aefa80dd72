"""Answers for a handler that is late, even one that holds the event loop.

A plain handler that computes, sleeps or waits for a disk keeps the loop from doing anything; a thread then sends the
reply before the runtime's timer ends the connection. The thread sleeps until a handler is armed and parks again when
none was for a while, so that an idle plugin has no wake-ups.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_POLL_S = 0.2
_IDLE_ROUNDS = 10


class Ticket:
    """One guarded call: ``on_late`` runs in the guard's thread at ``deadline`` (monotonic) unless disarmed before."""

    __slots__ = ("deadline", "on_late")

    def __init__(self, deadline: float, on_late: Callable[[], None]) -> None:
        self.deadline = deadline
        self.on_late = on_late


class DeadlineGuard:
    """Whoever takes a ticket out, the handler's side by ``disarm`` or the thread, is the one to reply."""

    def __init__(self) -> None:
        self._tickets: set[Ticket] = set()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._parked = True
        self._poll_s = _POLL_S
        self._thread: threading.Thread | None = None
        self._closed = False

    def arm(self, deadline: float, on_late: Callable[[], None]) -> Ticket:
        ticket = Ticket(deadline, on_late)
        # A sleeping thread has to look again before this deadline, however short the runtime's timeouts are.
        self._poll_s = min(self._poll_s, max((deadline - time.monotonic()) / 4, 0.005))
        with self._lock:
            self._tickets.add(ticket)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="nri-deadline", daemon=True)
            self._thread.start()
        if self._parked:
            self._wake.set()
        return ticket

    def disarm(self, ticket: Ticket) -> bool:
        """True for the one who is to reply; False where the thread has replied already."""
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)
                return True
            return False

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def _watch(self) -> None:
        idle = 0
        while not self._closed:
            with self._lock:
                ticket = min(self._tickets, key=lambda each: each.deadline, default=None)
            if ticket is None:
                idle += 1
                if idle > _IDLE_ROUNDS:
                    self._park()
                    idle = 0
                else:
                    time.sleep(self._poll_s)
                continue
            idle = 0
            wait = ticket.deadline - time.monotonic()
            if wait > 0:
                time.sleep(min(wait, self._poll_s))
            elif self.disarm(ticket):
                ticket.on_late()

    def _park(self) -> None:
        self._wake.clear()
        self._parked = True
        if not self._tickets:
            self._wake.wait()
        self._parked = False
