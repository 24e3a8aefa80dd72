"""One file being dealt with, what is missing of it, and why a whole job stops."""

from __future__ import annotations

from nri_warmup.inject.files import Found
from nri_warmup.kernel import pagecache
from nri_warmup.kernel.pagecache import Mapping

Range = tuple[int, int]
"""(start, end) in bytes of a file."""

WINDOW = 256 << 20
"""As much of a file as is looked at, or populated through one mapping, at a time."""


class Stop(Exception):
    """The whole job ends here. ``state`` is a value of model.outcome.OutcomeState."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


class Work:
    """One file and what came of it so far."""

    __slots__ = (
        "absent",
        "active",
        "detail",
        "fd",
        "found",
        "populated",
        "ranges",
        "resident",
        "state",
        "truthful",
        "wanted",
    )

    def __init__(self, found: Found, fd: int, ranges: list[Range], truthful: bool) -> None:
        self.found = found
        self.fd = fd
        self.ranges = ranges
        self.truthful = truthful
        self.wanted = sum(end - start for start, end in ranges)
        self.absent = 0
        """Bytes that were not there before."""
        self.populated = 0
        """Bytes asked of the kernel, for files of which it will not say what is resident."""
        self.resident: int | None = None
        self.active = False
        self.state = "warmed"
        self.detail = ""

    @property
    def read(self) -> int:
        if self.resident is None:
            return self.populated
        return max(0, self.absent - (self.wanted - self.resident))

    def fail(self, state: str, detail: str) -> None:
        """The first thing that went wrong is the one reported."""
        if self.state == "warmed":
            self.state, self.detail = state, detail


def missing_of(work: Work) -> list[Range]:
    with Mapping(work.fd, 0, work.found.size) as mapping:
        return missing_in(mapping, work.ranges)


def missing_in(mapping: Mapping | None, ranges: list[Range]) -> list[Range]:
    missing: list[Range] = []
    if mapping is None:
        return missing
    for start, end in ranges:
        for at in range(start, end, WINDOW):
            stop = min(end, at + WINDOW)
            missing += pagecache.absent_runs(mapping.residency(at, stop - at), at, stop)
    return missing
