"""The second level of address translation: a page that came by DMA may cost its first CPU access dear in a guest.

Where a hypervisor backs memory lazily (ballooning, free page reporting, overcommit), the first access by a CPU to each
such page is a fault of the *host*, 10 to 30 µs for every 4 KiB: invisible to the guest's fault counters, and more than
the disk read itself. Reading into the page cache does not take it away, for the data came by DMA. One byte of each page
read by the kernel on our behalf does, for every later mapping.

Whether that is needed is measured, not guessed: a sample of each step is touched, the rest only if the sample was slow.
On hardware, or where guest memory is pinned (as with GPUs passed through), the sample costs microseconds, no more.
It is bounded: never past the job's deadline, and never more than ``SHARE`` of the time that the job has, for what is
not touched in advance the server pays for itself, while what is not read would not be there at all.
"""

from __future__ import annotations

import time

from nri_warmup.errors import KernelError
from nri_warmup.kernel.selfread import BATCH, PageReader
from nri_warmup.kernel.syscalls import PAGE_SIZE

TYPE_CHECKING = False  # importing typing would cost the zygote memory
if TYPE_CHECKING:
    from collections.abc import Callable

    Clock = Callable[[], float]

HALF_PAGES = 128
"""A sample is two runs of so many pages, and as slow as the faster one: a CPU taken away meanwhile slows down one."""
SLOW_S = 3e-6
"""A page. Within one level of translation it takes 0.1 to 0.4 µs through process_vm_readv."""
SHARE = 0.5


class Toucher:
    """One job's touching: ``after_populate`` for each range that was populated and is mapped here.

    ``deadline`` is a reading of ``clock``; ``time_s`` what the job has in all.
    """

    def __init__(self, deadline: float, time_s: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._deadline = deadline
        self._bound_s = SHARE * time_s
        self._reader: PageReader | None = None
        self._usable = True
        self.touched_bytes = 0
        self.seconds = 0.0
        """Spent here, samples included."""

    def after_populate(self, address: int, length: int) -> None:
        """Sample the range, and touch it whole where the sample is slow. Stops silently at a truncated file's end."""
        pages = length // PAGE_SIZE
        half = min(pages // 2, HALF_PAGES)
        if not self._usable or half == 0:
            return
        fastest = min(self._timed(address, half), self._timed(address + half * PAGE_SIZE, half))
        if fastest < half * SLOW_S:
            return
        done = 2 * half
        while done < pages and self._usable and self._has_time():
            count = min(BATCH, pages - done)
            if self._timed(address + done * PAGE_SIZE, count) < 0:
                break
            done += count
        self.touched_bytes += done * PAGE_SIZE

    def _has_time(self) -> bool:
        return self._clock() < self._deadline and self.seconds < self._bound_s

    def _timed(self, address: int, pages: int) -> float:
        """Seconds that touching took; less than none where it could not be done."""
        began = self._clock()
        whole = self._touch(address, pages)
        took = self._clock() - began
        self.seconds += took
        return took if whole else -1.0

    def _touch(self, address: int, pages: int) -> bool:
        try:
            if self._reader is None:
                self._reader = PageReader()
            return self._reader.touch(address, pages)
        except KernelError:
            self._usable = False  # no such call here, or a seccomp profile against it
            return False
