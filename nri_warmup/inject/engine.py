"""Warming: brings the files found into the page cache in the way that leaves no trace on the LRU, and measures the
result.

Small files: ``small.py``. Large files: ``large.py``. Both verify by mincore what has come, ask once more for what is
missing, and read through what still is. The page cache is never read by Python and mapped memory never touched: a file
truncated meanwhile is EFAULT from madvise. Budget, deadline and progress are kept here.
"""

from __future__ import annotations

import os
import time

from nri_warmup.errors import KernelError
from nri_warmup.inject.files import SMALL, Finder, Found, Refused
from nri_warmup.inject.large import LargeFile
from nri_warmup.inject.lease import Lease
from nri_warmup.inject.meter import Meter
from nri_warmup.inject.small import SmallFiles
from nri_warmup.inject.touch import Toucher
from nri_warmup.inject.wire import MAX_FILE_RECORDS, Report, Task
from nri_warmup.inject.work import HUGE_ANYWAY, Geometry, Stop, Work, missing_of, total
from nri_warmup.kernel import pagecache, syscalls
from nri_warmup.kernel.pagecache import Mapping

REPORT_S = 0.1
MAX_RANGES = 10_000
RELEASE = pagecache.kernel_release()


class Engine:
    def __init__(
        self, task: Task, finder: Finder, report: Report, meter: Meter | None, null_fd: int, lease_fd: int | None
    ) -> None:
        self.task = task
        self._finder = finder
        self._report = report
        self.meter = meter
        self._null_fd = null_fd
        self._lease = Lease(lease_fd, task.lease_wait_s)
        self._deadline = time.monotonic() + task.deadline_s
        self.toucher = Toucher(self._deadline, task.deadline_s)
        self.geometry = Geometry(task.pmd_bytes, huge=task.populate)
        self.stall_s = min(5.0, max(0.05, task.deadline_s / 20))
        """WILLNEED is taken to have given up when nothing has come for so long: a small share of the job's time."""
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
        small = SmallFiles(self)
        for found in wanted:
            if found.size < SMALL:
                small.add(found)
                continue
            small.flush()
            self._large(found)
        small.flush()
        if self.over_budget:
            return "over-budget", self._budget_reason()
        return ("partial", "not everything wanted is resident") if self.failed else ("done", "")

    def _cut(self, found: list[Found]) -> list[Found]:
        """What fits below max_bytes, in order."""
        taken = 0
        kept = []
        for item in found:
            if taken + item.size > self.task.max_bytes:
                self.over_budget = True
                self._result(item.path, "over-budget", item.size, 0, 0, False, "beyond max-bytes")
                continue
            taken += item.size
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
            there = (self.resident or 0) + resident
            self._report.send("progress", self.wanted, there, self.read + read, self.files, current)
        if now >= self._deadline:
            raise Stop("deadline", f"not done within {self.task.deadline_s:g} s")

    # -- one file -----------------------------------------------------------------------------------------------------

    def open(self, found: Found) -> Work | None:
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
        inside = bool(self.task.namespaces & syscalls.CLONE_NEWUSER)
        truthful = pagecache.tells_truth(fd, in_user_namespace=inside, release=RELEASE)
        work = Work(found, fd, ranges, truthful)
        if work.wanted != size:
            work.detail = f"sparse: {size - work.wanted} bytes of holes left out"
            self.wanted += work.wanted - size
        return work

    def close(self, work: Work) -> None:
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
        overshoot = min(self._overshoot(self.geometry), max(0, work.found.size - end))
        return self.spent + absent + overshoot <= self.task.budget_bytes

    def _overshoot(self, geometry: Geometry) -> int:
        """Ordinary readahead has up to two windows in flight; the one of a MADV_HUGEPAGE mapping goes by PMDs."""
        return max((1 if geometry.huge else 2) * self.task.readahead_bytes, geometry.overshoot)

    def _observe(self, found: Found) -> None:
        """What is resident of a file, and nothing else."""
        self.progress(found.path)
        work = self.open(found)
        if work is None:
            return
        try:
            if work.truthful:
                work.resident = work.wanted - total(missing_of(work))
        except KernelError as exc:
            work.fail("failed", str(exc))
        finally:
            self.close(work)

    # -- large files --------------------------------------------------------------------------------------------------

    def _large(self, found: Found) -> None:
        self.progress(found.path)
        work = self.open(found)
        if work is None:
            return
        try:
            self._lease.take(work, lambda: self.progress(found.path))
            LargeFile(self, work).warm()
        except KernelError as exc:
            work.fail("failed", str(exc))
        finally:
            self._lease.release()
            self.close(work)

    def save_overshoot(self) -> bool:
        """Go on without MADV_HUGEPAGE where its overshoot is large; False where there is nothing to save."""
        plain = Geometry(self.task.pmd_bytes, huge=False)
        if self.geometry.piece <= HUGE_ANYWAY or self._overshoot(plain) >= self._overshoot(self.geometry):
            return False
        self.geometry = plain
        return True

    def cannot_populate(self) -> None:
        """What is read through instead is read by ordinary readahead."""
        self.geometry = Geometry(self.task.pmd_bytes, huge=False)

    # -- shared by small and large files ------------------------------------------------------------------------------

    def unmappable(self, work: Work) -> None:
        """A file that mmap(2) refuses: read through, and nobody can say what of it is resident."""
        work.active = True
        work.truthful = False
        if not self.room(work, work.wanted, work.found.size):
            work.fail("over-budget", "the budget is used up")
            return
        self.spent += work.wanted
        for start, end in work.ranges:
            self.send_through(work, start, end)
            work.populated += end - start
        work.fail("warmed", "cannot be mapped, read through: its pages count as active")

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

    def cool(self, work: Work, start: int, end: int) -> None:
        """MADV_COLD needs page tables: map the range populated (as old kernels can, too), then cool it."""
        if not self.task.cold:
            return
        if not work.truthful:
            work.active = True
            return
        try:
            with Mapping(work.fd, start, end - start, populate=True, align=self.geometry.piece) as mapping:
                if self.meter is not None and self.meter.due():
                    self.meter.count(mapping.address, mapping.length)
                mapping.advise(start, end - start, syscalls.MADV_COLD)
        except KernelError:
            work.active = True
