"""One large file: populate what is absent in steps, cool what was absent, leave other people's pages alone.

What is absent is populated through a mapping with MADV_HUGEPAGE + MADV_SEQUENTIAL + MADV_POPULATE_READ (large folios
where the file system has them, whatever read_ahead_kb says), then MADV_COLD over it, so that the server's own first
access leaves the pages inactive. Only whole 2 MiB pieces that were absent: a part splits the folio, and pages that
were there before are somebody else's. Parts of a piece are read by WILLNEED windows, which reference nothing. Where
populating is not possible: sendfile to /dev/null, then COLD through a populated mapping.
"""

from __future__ import annotations

import errno
import os
import time

from nri_warmup.errors import KernelError
from nri_warmup.inject.work import CHUNK, WINDOW, Range, Stop, Work, missing_in, total
from nri_warmup.kernel import pagecache, syscalls
from nri_warmup.kernel.pagecache import Mapping
from nri_warmup.kernel.syscalls import PAGE_SIZE

TYPE_CHECKING = False  # importing typing would cost the zygote memory
if TYPE_CHECKING:
    from nri_warmup.inject.engine import Engine

REST_BYTES = 8 << 20
"""What may be missing after two passes and is read once more, or a sixteenth of what is wanted."""
GAP_BYTES = 32 << 20
"""Read by WILLNEED and not waited for yet."""


class LargeFile:
    """One large file, step by step."""

    def __init__(self, engine: Engine, work: Work) -> None:
        self._engine = engine
        self._work = work
        self._window: Mapping | None = None
        self._scan: Mapping | None = None
        self._gaps: list[Range] = []
        """Asked of WILLNEED, and not waited for yet."""
        """Waited for in vain."""
        self._populate = engine.task.populate

    def warm(self) -> None:
        work = self._work
        try:
            self._scan = Mapping(work.fd, 0, work.found.size)
        except KernelError:
            self._engine.unmappable(work)
            return
        try:
            self._pass(first=True)
            self._settle()
            if self._is_wanting():
                self._pass(first=False)
                self._settle()
            if self._is_wanting():
                self._read_through()
        except Stop:
            self._tally()
            raise
        finally:
            self._drop_window()
            self._scan.unmap()

    def _is_wanting(self) -> bool:
        return self._work.truthful and self._work.resident != self._work.wanted and self._work.state == "warmed"

    def _read_through(self) -> None:
        """What WILLNEED was asked for twice and did not bring: pages that a reader who died left in the cache unread,
        and devices that ignore advice. A fault reads the former, a read the latter. Not where much is missing: that has
        been taken away again, and reading it anew would only take away the rest."""
        missing = missing_in(self._scan, self._work.ranges)
        if total(missing) > max(REST_BYTES, self._work.wanted // 16):
            return
        for start, end in missing:
            try:
                with Mapping(self._work.fd, start, end - start) as mapping:
                    mapping.advise(start, end - start, syscalls.MADV_POPULATE_READ)
            except KernelError:
                self._engine.send_through(self._work, start, end)
            self._engine.cool(self._work, start, end)
        self._tally()

    def _pass(self, *, first: bool) -> None:
        """Every step of the file. What is absent of a step is asked before the step before it is read: the kernel's own
        readahead past a step's end is ours, and must not look as if it had been there before."""
        steps = Steps(self._work.ranges, self._engine.geometry.step)
        ahead = next(steps, None)
        vector = self._look(ahead)
        while ahead is not None:
            step, seen = ahead, vector
            ahead = next(steps, None)
            vector = self._look(ahead)
            self._engine.progress(self._work.found.path, read=self._work.populated)
            if not self._step(step, seen, first):
                return

    def _look(self, step: Range | None) -> bytes:
        if step is None:
            return b""
        start, end = step
        if not self._work.truthful:
            return bytes(-(-(end - start) // PAGE_SIZE))
        assert self._scan is not None
        return self._scan.residency(start, end - start)

    def _step(self, step: Range, vector: bytes, first: bool) -> bool:
        """Read what is absent of one step; False when the file is at its end (budget, shrunk, I/O error)."""
        work, engine = self._work, self._engine
        bodies, gaps, absent = self._split(step, vector)
        if first:
            work.absent += absent
        if absent == 0:
            return True
        whole = engine.room(work, absent, step[1])
        if not whole and engine.save_overshoot():
            self._drop_window()
            bodies, gaps, absent = self._split(step, vector)
            whole = engine.room(work, absent, step[1])
        if not whole:
            bodies, gaps = self._fitting(bodies), []
        for start, end in bodies:
            if not self._body(start, end):
                self._count_rest(step, first)
                return False
            engine.spent += end - start
            work.populated += end - start
        for start, end in gaps:
            pagecache.will_need(work.fd, start, end, CHUNK)
            engine.spent += end - start
            work.populated += end - start
        self._gaps += gaps
        if total(self._gaps) > GAP_BYTES:
            self._wait_gaps()
        if not whole:
            work.fail("over-budget", "the budget is used up")
            self._count_rest(step, first)
        return whole

    def _split(self, step: Range, vector: bytes) -> tuple[list[Range], list[Range], int]:
        return split(vector, step[0], step[1], self._work.found.size, self._engine.geometry.piece)

    def _count_rest(self, step: Range, first: bool) -> None:
        """Absent bytes of the steps that are not taken any more: ``read`` is absent before less missing afterwards."""
        if not first or not self._work.truthful:
            return
        for rest in Steps(self._work.ranges, self._engine.geometry.step):
            if rest[0] >= step[1]:
                self._work.absent += total(pagecache.absent_runs(self._look(rest), rest[0], rest[1]))

    def _fitting(self, bodies: list[Range]) -> list[Range]:
        """The leading whole pieces of a step that still fit into the budget."""
        kept: list[Range] = []
        held, piece = self._engine.spent, self._engine.geometry.piece
        for start, end in bodies:
            while end > start and not self._engine.room(self._work, end - start, end):
                end = start + (end - start - 1) // piece * piece
            if end <= start:
                break
            kept.append((start, end))
            self._engine.spent += end - start
        self._engine.spent = held
        return kept

    def _body(self, start: int, end: int) -> bool:
        work, engine = self._work, self._engine
        if self._populate:
            try:
                window = self._window_for(start, end)
                window.advise(start, end - start, syscalls.MADV_POPULATE_READ)
            except KernelError as exc:
                if not self._populate_failed(exc, end):
                    return False
            else:
                engine.toucher.after_populate(window.address_of(start), pagecache.page_end(end - start))
                if engine.meter is not None and engine.meter.due():
                    engine.meter.count(window.address_of(start), pagecache.page_end(end - start))
                if engine.task.cold and work.truthful:
                    window.advise(start, end - start, syscalls.MADV_COLD)
                elif engine.task.cold:
                    work.active = True
                else:  # once more: large folios are only noted as used where they were mapped before
                    window.advise(start, end - start, syscalls.MADV_POPULATE_READ)
                return True
        engine.send_through(work, start, end)
        engine.cool(work, start, end)
        return work.state != "shrank"

    def _populate_failed(self, exc: KernelError, end: int) -> bool:
        """True when sendfile may do it instead: EINVAL is a kernel before 5.14, or a mapping that cannot be
        populated."""
        if exc.errno in (errno.EINVAL, errno.ENOSYS):
            self._populate = False
            self._engine.cannot_populate()
            return True
        if exc.errno == errno.ENOMEM:
            self._work.fail("over-budget", "no memory left in the cgroup")
        elif exc.errno == errno.EFAULT and os.fstat(self._work.fd).st_size < end:
            self._work.fail("shrank", "truncated while it was read")
        else:
            self._work.fail("failed", str(exc) + (": I/O error" if exc.errno == errno.EFAULT else ""))
        return False

    def _window_for(self, start: int, end: int) -> Mapping:
        window = self._window
        if window is None or start < window.offset or end > window.offset + window.length:
            self._drop_window()
            length = min(max(WINDOW, end - start), self._work.found.size - start)
            geometry = self._engine.geometry
            window = Mapping(self._work.fd, start, length, align=geometry.piece)
            self._window = window
            huge = (syscalls.MADV_HUGEPAGE,) if geometry.huge else ()
            # The kernel does not note the use of what is mapped as sequential (vma_has_recency): for pages that shall
            # become active with the server's first access it has to.
            sequential = (syscalls.MADV_SEQUENTIAL,) if self._engine.task.cold else ()
            for advice in (*huge, *sequential):
                try:
                    window.advise(start, length, advice)
                except KernelError:
                    pass  # a kernel without THP: smaller folios, nothing else
        return window

    def _drop_window(self) -> None:
        if self._window is not None:
            self._window.unmap()
            self._window = None

    def _wait_gaps(self) -> None:
        if self._work.truthful and self._scan is not None:
            wait_resident(self._engine, self._scan, self._gaps, self._work.found.path)
        self._gaps = []

    def _settle(self) -> None:
        self._wait_gaps()
        self._drop_window()
        self._tally()

    def _tally(self) -> None:
        """What is resident now, by mincore over the page cache."""
        if self._work.truthful:
            self._work.resident = self._work.wanted - total(missing_in(self._scan, self._work.ranges))


def split(vector: bytes, start: int, end: int, size: int, piece: int) -> tuple[list[Range], list[Range], int]:
    """A mincore vector of ``start`` to ``end`` as (whole absent pieces, merged; absent parts of other pieces; absent
    bytes).

    A piece is ``piece`` bytes, aligned in the file; the file's last one is whole when it is absent up to its end.
    """
    if 1 not in vector and start % piece == 0 and (end % piece == 0 or end >= size):
        return [(start, end)], [], end - start
    bodies: list[Range] = []
    gaps: list[Range] = []
    absent = 0
    position = start
    while position < end:
        stop = min(end, (position // piece + 1) * piece)
        part = vector[(position - start) // PAGE_SIZE : -(-(stop - start) // PAGE_SIZE)]
        whole = position % piece == 0 and (stop % piece == 0 or stop >= size)
        if whole and 1 not in part:
            if bodies and bodies[-1][1] == position:
                bodies[-1] = (bodies[-1][0], stop)
            else:
                bodies.append((position, stop))
            absent += stop - position
        else:
            runs = pagecache.absent_runs(part, position, stop)
            gaps += runs
            absent += total(runs)
        position = stop
    return bodies, gaps, absent


def wait_resident(engine: Engine, mapping: Mapping, ranges: list[Range], path: str) -> None:
    """Until WILLNEED has brought the ranges in, or nothing has come for as long as the engine bears."""
    pause, missing, since = 0.001, -1, time.monotonic()
    while ranges:
        ranges = missing_in(mapping, ranges)
        left = total(ranges)
        if left != missing:
            missing, since = left, time.monotonic()
        elif time.monotonic() - since > engine.stall_s:
            break
        if ranges:
            engine.progress(path)
            time.sleep(pause)
            pause = min(0.02, pause * 2)


class Steps:
    """Ranges cut at multiples of ``step``."""

    __slots__ = ("_position", "_ranges", "_step")

    def __init__(self, ranges: list[Range], step: int) -> None:
        self._step = step
        self._ranges = iter(ranges)
        self._position: Range | None = next(self._ranges, None)

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Range:
        if self._position is None:
            raise StopIteration
        start, end = self._position
        stop = min(end, (start // self._step + 1) * self._step)
        self._position = (stop, end) if stop < end else next(self._ranges, None)
        return start, stop
