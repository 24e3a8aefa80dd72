"""Small files: WILLNEED, many at a time, completion by mincore, which leaves them as unreferenced as readahead does.

WILLNEED promises nothing: it gives up silently without memory or after an I/O error, and some file systems ignore it.
So what does not come is asked for once more, then read through and cooled. A device on which nothing at all came is not
asked again.
"""

from __future__ import annotations

import errno
import time

from nri_warmup.errors import KernelError
from nri_warmup.inject.files import Found
from nri_warmup.inject.work import CHUNK, Work, missing_of, total
from nri_warmup.kernel import pagecache, syscalls
from nri_warmup.kernel.pagecache import Mapping

TYPE_CHECKING = False  # importing typing would cost the zygote memory
if TYPE_CHECKING:
    from nri_warmup.inject.engine import Engine

BATCH_FILES = 128
BATCH_BYTES = 32 << 20


class SmallFiles:
    """``add`` each, ``flush`` at the end: files are closed and reported batch by batch."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batch: list[Work] = []
        self._deaf: set[int] = set()
        """Devices whose file systems do not do what WILLNEED asks."""

    def add(self, found: Found) -> None:
        self._engine.progress(found.path)
        work = self._engine.open(found)
        if work is None:
            return
        self._batch.append(work)
        if len(self._batch) >= BATCH_FILES or sum(item.wanted for item in self._batch) >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        batch, self._batch = self._batch, []
        try:
            left = self._wait([work for work in batch if self._issue(work)])
            if left:
                left = self._wait([work for work in left if self._issue_missing(work)])
                self._learn(batch, left)
                for work in left:
                    self._read_through(work)
        finally:
            for work in batch:
                self._measure(work)
                self._engine.close(work)

    def _issue(self, work: Work) -> bool:
        """Start reading what is absent; False where there is nothing to wait for."""
        engine = self._engine
        try:
            absent = missing_of(work) if work.truthful else work.ranges
        except KernelError as exc:
            if exc.errno == errno.ENODEV:
                engine.unmappable(work)
            else:
                work.fail("failed", str(exc))
            return False
        work.absent = total(absent)
        if work.truthful:
            work.resident = work.wanted - work.absent
        if not engine.room(work, work.absent, work.found.size):
            work.fail("over-budget", "the budget is used up")
            return False
        engine.spent += work.absent
        work.populated = work.absent
        if work.found.device in self._deaf and work.absent:
            self._read_through(work)
            return False
        return self._ask(work, absent) and work.truthful and work.absent > 0

    def _issue_missing(self, work: Work) -> bool:
        try:
            return self._ask(work, missing_of(work))
        except KernelError as exc:
            work.fail("failed", str(exc))
            return False

    def _ask(self, work: Work, ranges: list[tuple[int, int]]) -> bool:
        try:
            for start, end in ranges:
                pagecache.will_need(work.fd, start, end, CHUNK)
        except KernelError as exc:
            work.fail("failed", str(exc))
            return False
        return True

    def _wait(self, waiting: list[Work]) -> list[Work]:
        """Until all is there, or nothing has come for as long as the engine bears; those that are not there."""
        pause, missing, since = 0.001, -1, time.monotonic()
        while waiting:
            for work in waiting:
                self._look(work)
            waiting = [work for work in waiting if work.resident != work.wanted and work.state == "warmed"]
            left = sum(work.wanted - (work.resident or 0) for work in waiting)
            if left != missing:
                missing, since = left, time.monotonic()
            elif time.monotonic() - since > self._engine.stall_s:
                break
            if waiting:
                self._engine.progress(waiting[0].found.path)
                time.sleep(pause)
                pause = min(0.02, pause * 2)
        return waiting

    def _look(self, work: Work) -> None:
        try:
            work.resident = work.wanted - total(missing_of(work))
        except KernelError as exc:
            work.fail("failed", str(exc))

    def _learn(self, batch: list[Work], left: list[Work]) -> None:
        """Which devices to ask no more: asked twice, and not a page came of any file."""
        silent = {work.found.device for work in left}
        silent -= {work.found.device for work in batch if work.truthful and work.read}
        self._deaf |= silent

    def _read_through(self, work: Work) -> None:
        """What is missing by sendfile, then cooled: it waits for the data, and says what is wrong with them."""
        try:
            missing = missing_of(work) if work.truthful else work.ranges
            for start, end in missing:
                self._engine.send_through(work, start, end)
                self._engine.cool(work, start, end)
        except KernelError as exc:
            work.fail("failed", str(exc))
        if work.truthful:
            self._look(work)

    def _measure(self, work: Work) -> None:
        """Owner and folio size of a file that is wholly ours and wholly there: map it, count, and cool it whole
        again."""
        engine = self._engine
        ours = work.truthful and 0 < work.absent == work.wanted == work.resident
        if not ours or engine.meter is None or not engine.task.populate or not engine.meter.due():
            return
        try:
            with Mapping(work.fd, 0, work.found.size) as mapping:
                mapping.advise(0, work.found.size, syscalls.MADV_POPULATE_READ)
                engine.meter.count(mapping.address, mapping.length)
                if engine.task.cold:
                    mapping.advise(0, work.found.size, syscalls.MADV_COLD)
        except KernelError:
            pass  # truncated, or a kernel that does not populate: only the measurement is lost
