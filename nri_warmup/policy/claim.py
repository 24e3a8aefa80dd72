"""What one running warm-up was granted, what it says it wants, and whether it gets on. Pure: times are handed in.

A worker says what it wants as soon as it has expanded its patterns, before it reads. From then on its claim on the room
it shares with others is what it wants, not all that it was granted. Those that come after wait a moment for that word
(``expected_s``); from one that does not give it in time, nothing is kept: listing a directory for a minute is no way
to keep others from theirs. The same holds for one that does not get on: what it has read stays its own, what it may
still read is not kept for it.
"""

from __future__ import annotations

from nri_warmup.model.outcome import Progress
from nri_warmup.policy.memory import Pledge

ANNOUNCE_S = 2.0
"""How long others wait for what a job wants."""
STALLED_S = 15.0
"""More than expanding patterns may take."""
STALLED_BYTES = 16 << 20
"""A job that gets less than this on in STALLED_S does not need a slot: nobody would be slowed down by it."""


class Claim:
    def __init__(self, now_s: float, *, stalled_s: float = STALLED_S) -> None:
        self._stalled_s = stalled_s
        self._levels: frozenset[str] = frozenset()
        self._granted_bytes: int | None = None
        self._granted_s = now_s
        self._wanted_bytes = 0
        self._done_bytes = 0
        self._mark_s = now_s
        self._mark_bytes = 0
        self.read_bytes = 0
        self.stalled = False
        """It gave its slot back."""
        self.outgrown = False
        """Its files grew past what is left of its namespace's quota."""

    def grant(self, now_s: float, levels: frozenset[str], n_bytes: int) -> None:
        """It may read ``n_bytes``, charged in ``levels``. Never said of a job that only measures."""
        self._levels, self._granted_bytes, self._granted_s = levels, n_bytes, now_s

    def note(self, progress: Progress) -> None:
        """A second pass over files that the first could not read starts at zero again, hence the maxima."""
        self._wanted_bytes = max(self._wanted_bytes, progress.wanted_bytes, progress.read_bytes)
        self._done_bytes = max(self._done_bytes, progress.resident_bytes + progress.read_bytes)
        self.read_bytes = max(self.read_bytes, progress.read_bytes)

    @property
    def wanted_bytes(self) -> int | None:
        """None: it has not said yet."""
        return self._wanted_bytes or None

    def expected_s(self, now_s: float) -> float:
        """Seconds for which it is worth waiting for what it wants; 0 where it is not, or it has said."""
        if self._granted_bytes is None or self._wanted_bytes or self.stalled:
            return 0.0
        return max(0.0, self._granted_s + ANNOUNCE_S - now_s)

    def pledge(self) -> Pledge:
        kept = self.read_bytes if self.stalled else self._wanted_bytes
        return Pledge(levels=self._levels, n_bytes=min(self._granted_bytes or 0, kept))

    def gets_on(self, now_s: float) -> bool:
        """Whether it did enough since it was last found to, or not enough time has passed to tell."""
        if self._done_bytes - self._mark_bytes >= STALLED_BYTES:
            self._mark_s, self._mark_bytes = now_s, self._done_bytes
        return now_s - self._mark_s < self._stalled_s
