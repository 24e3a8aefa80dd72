"""Files and ranges to read, and what came of each. Sizes in bytes; ``resident`` is by mincore, never a guess."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FileState(Enum):
    WARMED = "warmed"
    """Everything wanted of it is resident."""
    PARTIAL = "partial"
    EMPTY = "empty"
    UNREADABLE = "unreadable"
    VANISHED = "vanished"
    REFUSED = "refused"
    """Not a regular file, a pseudo file system, a link that leaves the root …: ``detail`` says which."""
    SHRANK = "shrank"
    OVER_BUDGET = "over-budget"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOutcome:
    path: str
    state: FileState
    wanted_bytes: int = 0
    resident_bytes: int | None = None
    """None: the kernel would not say (mincore answers truthfully only to the file's owner)."""
    read_bytes: int = 0
    """Brought in by this job."""
    owned_bytes: int | None = None
    """Of read_bytes, charged to the target's memory cgroup (kpagecgroup); None where it cannot be told."""
    large_folio_bytes: int | None = None
    active: bool = False
    """Left on the active list because the file could not be mapped."""
    detail: str = ""
