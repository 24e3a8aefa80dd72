"""Warming: brings the files found into the page cache in the way that leaves no trace on the LRU, and measures the
result.

Small files: WILLNEED, many at a time, completion by mincore. Large files: ``large.py``. Then everything is verified by
mincore, and what is missing warmed once more. The page cache is never read by Python and mapped memory never touched:
a file truncated meanwhile is EFAULT from madvise. Budget, deadline and progress are kept here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from nri_warmup.errors import KernelError
from nri_warmup.inject.files import SMALL, Finder, Found, Refused
from nri_warmup.inject.large import CHUNK, STALL_S, LargeFile
from nri_warmup.inject.meter import Meter
from nri_warmup.inject.touch import Toucher
from nri_warmup.inject.wire import MAX_FILE_RECORDS, Report, Task
from nri_warmup.inject.work import Stop, Work, missing_of
from nri_warmup.kernel import pagecache, syscalls
from nri_warmup.kernel.pagecache import Mapping

OVERSHOOT = 4 << 20
"""What the fault path reads at a time on a MADV_HUGEPAGE mapping: two PMD folios."""
BATCH_FILES = 128
BATCH_BYTES = 32 << 20
REPORT_S = 0.1
MAX_RANGES = 10_000


class Engine:
    def __init__(
        self, task: Task, finder: Finder, report: Report, meter: Meter | None, null_fd: int, lease_fd: int | None
    ) -> None:
        self.task = task
        self._finder = finder
        self._report = report
        self.meter = meter
        self.toucher = Toucher()
        self._null_fd = null_fd
        self._lease_fd = lease_fd
        self._deadline = time.monotonic() + task.deadline_s
        self._last_report = 0.0
        self.report_s = REPORT_S
        self.spent = 0
        """Bytes brought in so far, asked for rather than proven: what the budget is about."""
        self.wanted = 0
        self.resident: int | None = 0
        self.read = 0
        self.files = 0
        self.failed = False
        self.over_budget = False

    # -- the whole job ------------------------------------------------------------------------------------------------

    def run(self) -> tuple[str, str]:
        """(state, reason) of the outcome. Raises Stop."""
        self._finder.expand(self.task.patterns, literal=self.task.literal)
        for path, state, detail in self._finder.refused:
            self._result(path, state, 0, 0, 0, False, detail)
        for note in self._finder.notes:
            self._report.send("note", note)
            self.failed = True
        wanted = self._cut(self._finder.found)
        self.wanted = sum(found.size for found in wanted)
        if self.task.measure_only:
            for found in wanted:
                self._observe(found)
            return "observed", "measured only"
        batch: list[Work] = []
        for found in wanted:
            if found.size < SMALL:
                self._collect(batch, found)
                continue
            self._small(batch)
            self._large(found)
        self._small(batch)
        if self.over_budget:
            return "over-budget", self._budget_reason()
        return ("partial", "not everything wanted is resident") if self.failed else ("done", "")

    def _cut(self, found: list[Found]) -> list[Found]:
        """What fits below max_bytes, in order."""
        total = 0
        kept = []
        for item in found:
            if total + item.size > self.task.max_bytes:
                self.over_budget = True
                self._result(item.path, "over-budget", item.size, 0, 0, False, "beyond max-bytes")
                continue
            total += item.size
            kept.append(item)
        return kept

    def _budget_reason(self) -> str:
        if self.task.budget_bytes is None:
            return f"more is wanted than max-bytes, {self.task.max_bytes}"
        return f"the budget of {self.task.budget_bytes} bytes does not hold everything"

    def _result(
        self, path: str, state: str, wanted: int, resident: int | None, read: int, active: bool, detail: str
    ) -> None:
        self.files += 1
        if state not in ("warmed", "empty"):
            self.failed = True
        if self.files <= MAX_FILE_RECORDS:
            owned = large = None
            if self.meter is not None:
                owned, large = self.meter.take(read)
            self._report.send("file", path, state, wanted, resident, read, owned, large, active, detail)

    def progress(self, current: str, resident: int = 0, read: int = 0) -> None:
        """At most ten records a second; also where the deadline is looked at."""
        now = time.monotonic()
        if now - self._last_report >= self.report_s:
            self._last_report = now
            total = (self.resident or 0) + resident
            self._report.send("progress", self.wanted, total, self.read + read, self.files, current)
        if now >= self._deadline:
            raise Stop("deadline", f"not done within {self.task.deadline_s:g} s")

    # -- one file -----------------------------------------------------------------------------------------------------

    def _open(self, found: Found) -> Work | None:
        """None where there is nothing to do, and the result has been reported."""
        try:
            fd, status = self._finder.open(found)
        except Refused as refusal:
            self.wanted -= found.size
            self._result(found.path, refusal.state, 0, 0, 0, False, refusal.detail)
            return None
        size = status.st_size
        self.wanted += size - found.size
        found.size = size
        if size == 0:
            os.close(fd)
            self._result(found.path, "empty", 0, 0, 0, False, "")
            return None
        sparse = status.st_blocks * 512 < size
        ranges = pagecache.data_ranges(fd, size, MAX_RANGES) if sparse else [(0, size)]
        work = Work(found, fd, ranges, pagecache.tells_truth(fd, _is_owner(status)))
        if work.wanted != size:
            work.detail = f"sparse: {size - work.wanted} bytes of holes left out"
            self.wanted += work.wanted - size
        return work

    def _close(self, work: Work) -> None:
        """Verdict and result of a file that has been dealt with."""
        try:
            size = os.fstat(work.fd).st_size
        except OSError:
            size = 0
        os.close(work.fd)
        if size < work.found.size:
            work.state, work.detail = "shrank", f"{work.found.size} bytes when opened, {size} now"
        elif work.resident is not None and work.resident < work.wanted:
            work.fail("partial", f"{work.wanted - work.resident} bytes are not resident")
        elif work.resident is None and not work.detail:
            work.detail = "the kernel does not say what is resident: not the file's owner"
        if work.resident is None or self.resident is None:
            self.resident = None
        else:
            self.resident += work.resident
        self.read += work.read
        if work.state == "over-budget":
            self.over_budget = True
        self._result(work.found.path, work.state, work.wanted, work.resident, work.read, work.active, work.detail)

    def room(self, work: Work, absent: int, end: int) -> bool:
        """Whether ``absent`` more bytes fit, and what the kernel may read past ``end`` of its own accord."""
        if self.task.budget_bytes is None:
            return True
        overshoot = min(max(self.task.readahead_bytes, OVERSHOOT), max(0, work.found.size - end))
        return self.spent + absent + overshoot <= self.task.budget_bytes

    def _observe(self, found: Found) -> None:
        """What is resident of a file, and nothing else."""
        self.progress(found.path)
        work = self._open(found)
        if work is None:
            return
        try:
            if work.truthful:
                work.resident = work.wanted - sum(end - start for start, end in missing_of(work))
        except KernelError as exc:
            work.fail("failed", str(exc))
        finally:
            self._close(work)

    # -- large files --------------------------------------------------------------------------------------------------

    def _large(self, found: Found) -> None:
        self.progress(found.path)
        work = self._open(found)
        if work is None:
            return
        self._lease(found)
        try:
            LargeFile(self, work).warm()
        except KernelError as exc:
            work.fail("failed", str(exc))
        finally:
            self._release()
            self._close(work)

    def _lease(self, found: Found) -> None:
        """One job per file at a time on the host: a byte-range lock that dies with its holder, named by inode and size.

        Not by device: two overlay mounts of one lower file differ in it. A collision only makes one wait for the other.
        """
        if self._lease_fd is None:
            return
        where = (found.inode * 0x9E3779B97F4A7C15 ^ found.size * 0xC2B2AE3D27D4EB4F) & ((1 << 62) - 1)
        while True:
            try:
                fcntl.fcntl(self._lease_fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, where, 1))
            except OSError as exc:
                if exc.errno not in (errno.EAGAIN, errno.EACCES):
                    return
            else:
                return
            self.progress(found.path)
            time.sleep(0.02)

    def _release(self) -> None:
        if self._lease_fd is not None:
            fcntl.fcntl(self._lease_fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))

    # -- small files --------------------------------------------------------------------------------------------------

    def _collect(self, batch: list[Work], found: Found) -> None:
        self.progress(found.path)
        work = self._open(found)
        if work is None:
            return
        batch.append(work)
        if len(batch) >= BATCH_FILES or sum(item.wanted for item in batch) >= BATCH_BYTES:
            self._small(batch)

    def _small(self, batch: list[Work]) -> None:
        """Issue all, then wait for all by mincore. Empties ``batch``."""
        try:
            waiting = [work for work in batch if self._issue(work)]
            _wait(self, waiting)
        finally:
            for work in batch:
                self._measure_small(work)
                self._close(work)
            batch.clear()

    def _issue(self, work: Work) -> bool:
        """Start reading what is absent of a small file; False where there is nothing to wait for."""
        try:
            absent = missing_of(work) if work.truthful else work.ranges
            work.absent = sum(end - start for start, end in absent)
            if work.truthful:
                work.resident = work.wanted - work.absent
            if not self.room(work, work.absent, work.found.size):
                work.fail("over-budget", "the budget is used up")
                return False
            self.spent += work.absent
            work.populated = work.absent
            for start, end in absent:
                pagecache.will_need(work.fd, start, end, CHUNK)
        except KernelError as exc:
            if exc.errno == errno.ENODEV:
                self.send_through(work, 0, work.found.size)
                work.active = True
            else:
                work.fail("failed", str(exc))
            return False
        return work.truthful and work.absent > 0

    def _measure_small(self, work: Work) -> None:
        """Owner and folio size of a file that is wholly ours and wholly there: map it, count, and cool it whole
        again."""
        ours = work.truthful and 0 < work.absent == work.wanted == work.resident
        if not ours or self.meter is None or not self.task.populate or not self.meter.due():
            return
        try:
            with Mapping(work.fd, 0, work.found.size) as mapping:
                mapping.advise(0, work.found.size, syscalls.MADV_POPULATE_READ)
                self.meter.count(mapping.address, mapping.length)
                if self.task.cold:
                    mapping.advise(0, work.found.size, syscalls.MADV_COLD)
        except KernelError:
            pass  # truncated, or a kernel that does not populate: only the measurement is lost

    # -- shared with LargeFile ---------------------------------------------------------------------------------------

    def send_through(self, work: Work, start: int, end: int) -> None:
        """Read a range by sendfile to /dev/null: works on whatever can be read, and leaves the pages referenced."""
        offset = start
        while offset < end:
            try:
                sent = os.sendfile(self._null_fd, work.fd, offset, min(8 << 20, end - offset))
            except OSError as exc:
                raise KernelError("sendfile", exc.errno or 0) from exc
            if sent == 0:
                work.fail("shrank", f"ended at {offset}")
                return
            offset += sent
            self.progress(work.found.path, read=offset - start)


def _wait(engine: Engine, works: list[Work]) -> None:
    """The same over many small files at once."""
    pause, missing, since = 0.001, -1, time.monotonic()
    waiting = works
    while waiting:
        for work in waiting:
            try:
                work.resident = work.wanted - sum(end - start for start, end in missing_of(work))
            except KernelError as exc:
                work.fail("failed", str(exc))
        waiting = [work for work in waiting if work.resident != work.wanted and work.state == "warmed"]
        left = sum(work.wanted - (work.resident or 0) for work in waiting)
        if left != missing:
            missing, since = left, time.monotonic()
        elif time.monotonic() - since > STALL_S:
            return
        if waiting:
            engine.progress(waiting[0].found.path)
            time.sleep(pause)
            pause = min(0.02, pause * 2)


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def _is_owner(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() or os.geteuid() == 0
