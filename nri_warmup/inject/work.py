"""One file being dealt with, what is missing of it, and why a whole job stops."""

from __future__ import annotations

from nri_warmup.inject.files import Found
from nri_warmup.kernel import pagecache
from nri_warmup.kernel.pagecache import PIECE, Mapping
from nri_warmup.kernel.syscalls import PAGE_SIZE

Range = tuple[int, int]
"""(start, end) in bytes of a file."""

WINDOW = 256 << 20
"""As much of a file as is looked at, or populated through one mapping, at a time."""

CHUNK = 128 << 10
"""One WILLNEED call: it loads no more than the device's largest request or readahead, whichever is more, and leaves the
rest out silently. Hardly any device has less; what is left out all the same is noticed, and read through."""

STEP = 16 << 20
"""As much as is populated by one call: between two of them progress, budget and deadline are looked at."""

MAX_FOLIO_ORDER = 11
"""The page cache holds no folio of more pages than 2 to this power (MAX_XAS_ORDER, linux/pagemap.h)."""

HUGE_ANYWAY = 4 << 20
"""Up to this PMD size MADV_HUGEPAGE is kept to under a budget to the end: its overshoot is not worth slower reads."""


class Geometry:
    """The units in which a large file is read, after the size of a PMD: 2 MiB with 4 KiB pages, 32 MiB with 16 KiB.

    ``piece`` is the largest folio to expect: MADV_COLD on a part would split it. ``overshoot`` is what a fault reads of
    its own accord on a MADV_HUGEPAGE mapping: two PMDs, or three where the file system has 4 KiB folios only (6.12: 26
    MiB asked for, 32 MiB read). A step is no shorter than that: what it reads past its end has been looked at before.
    Where the page cache cannot hold folios of PMD size (512 MiB, with 64 KiB pages), MADV_HUGEPAGE is left out.
    """

    __slots__ = ("huge", "overshoot", "piece", "step")

    def __init__(self, pmd_bytes: int, *, huge: bool = True, page_bytes: int = PAGE_SIZE) -> None:
        self.huge = huge and pmd_bytes <= page_bytes << MAX_FOLIO_ORDER
        self.piece = pmd_bytes if self.huge else PIECE
        self.overshoot = (3 if self.huge else 2) * self.piece
        self.step = max(STEP, self.overshoot)


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
        self.wanted = total(ranges)
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


def total(ranges: list[Range]) -> int:
    return sum(end - start for start, end in ranges)


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
