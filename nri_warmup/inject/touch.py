"""The second level of address translation: a page that came by DMA may cost its first CPU access dear in a guest.

Where a hypervisor backs memory lazily (ballooning, free page reporting, overcommit), the first access by a CPU to each
such page is a fault of the *host*, 10 to 30 µs for every 4 KiB: invisible to the guest's fault counters, and more than
the disk read itself. Reading into the page cache does not take it away, for the data came by DMA. One byte of each page
read by the kernel on our behalf does, for every later mapping.

Whether that is needed is measured, not guessed: a sample of each step is touched, the rest only if the sample was slow.
On hardware, or where guest memory is pinned (as with GPUs passed through), the sample costs microseconds, no more.
"""

from __future__ import annotations

import time

from nri_warmup.errors import KernelError
from nri_warmup.kernel.selfread import PageReader
from nri_warmup.kernel.syscalls import PAGE_SIZE

TYPE_CHECKING = False  # importing typing would cost the zygote memory
if TYPE_CHECKING:
    from collections.abc import Callable

    Clock = Callable[[], float]

SAMPLE_PAGES = 256
SLOW_S = 3e-6
"""A page. Within one level of translation it takes 0.1 to 0.4 µs through process_vm_readv."""


class Toucher:
    """One job's touching: ``after_populate`` for each range that was populated and is mapped here."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._reader: PageReader | None = None
        self._usable = True
        self.touched_bytes = 0

    def after_populate(self, address: int, length: int) -> None:
        """Sample the range, and touch it whole where the sample is slow. Stops silently at a truncated file's end."""
        pages = length // PAGE_SIZE
        sample = min(pages, SAMPLE_PAGES)
        if not self._usable or sample == 0:
            return
        began = self._clock()
        if not self._touch(address, sample) or self._clock() - began < sample * SLOW_S:
            return
        if self._touch(address + sample * PAGE_SIZE, pages - sample):
            self.touched_bytes += length

    def _touch(self, address: int, pages: int) -> bool:
        try:
            if self._reader is None:
                self._reader = PageReader()
            return self._reader.touch(address, pages)
        except KernelError:
            self._usable = False  # no such call here, or a seccomp profile against it
            return False
