"""What came of one warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nri_warmup.model.warmset import FileOutcome


class OutcomeState(Enum):
    """The bounded set of ends, also a metric label."""

    RUNNING = "running"
    QUEUED = "queued"
    DONE = "done"
    """Everything wanted is resident."""
    PARTIAL = "partial"
    OVER_BUDGET = "over-budget"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    CONTAINER_GONE = "container-gone"
    FAILED = "failed"
    SKIPPED = "skipped"
    OBSERVED = "observed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Sent while a worker runs. Bytes; ``wanted_bytes`` grows while globs expand."""

    wanted_bytes: int = 0
    resident_bytes: int = 0
    read_bytes: int = 0
    files: int = 0
    current: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one warm-up. Shares are derived, never stored: ``coverage`` = resident / wanted."""

    state: OutcomeState
    reason: str = ""
    seconds: float = 0.0
    budget_bytes: int | None = None
    wanted_bytes: int = 0
    resident_bytes: int | None = 0
    read_bytes: int = 0
    owned_bytes: int | None = None
    large_folio_bytes: int | None = None
    touched_bytes: int = 0
    """Of read_bytes, those whose first CPU access was slow (lazily backed guest memory) and was paid in advance."""
    touched_seconds: float = 0.0
    """What that took, looking whether it is needed included."""
    stuck: bool = False
    """Its worker was killed and did not die: it waits inside the kernel."""
    files_total: int = 0
    files: tuple[FileOutcome, ...] = ()
    """At most the first thousand; ``files_total`` counts all."""
    charged: bool = False
    """The worker ran in the container's memory cgroup."""
    late: bool = False
    """The container had started while the plugin was away."""

    @property
    def coverage(self) -> float | None:
        if self.resident_bytes is None:
            return None
        return self.resident_bytes / self.wanted_bytes if self.wanted_bytes else None

    @property
    def owned(self) -> float | None:
        """Share of the bytes this warm-up read that are charged to the container."""
        if self.owned_bytes is None or not self.read_bytes:
            return None
        return min(1.0, self.owned_bytes / self.read_bytes)
