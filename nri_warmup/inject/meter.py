"""Who owns what a job brought in, and in how large folios: counted while it is mapped, at a bounded price.

Counting 16 MiB costs some 0.3 ms with large folios and up to 10 ms with scattered 4 KiB pages. So the time spent is
watched: past ``SHARE`` of the job's time a step is left out, and the shares found are applied to what was not counted.
"""

from __future__ import annotations

import time

from nri_warmup.errors import KernelError
from nri_warmup.kernel.pagemap import Counts, PageMap

SHARE = 0.04


class Meter:
    def __init__(self, pages: PageMap, owner: int | None) -> None:
        self._pages = pages
        self._owner = owner
        self._begin = time.monotonic()
        self._cost = 0.0
        self._file = Counts()
        self._known = [0, 0, 0]

    def due(self) -> bool:
        """Whether another count keeps the price below SHARE. The first one always is, and each file's first."""
        if not self._file.pages and self._cost < 0.1:
            return True
        return self._cost <= SHARE * (time.monotonic() - self._begin)

    def count(self, address: int, length: int) -> None:
        """Count the present pages of a mapped range of this process."""
        begin = time.monotonic()
        try:
            # Inode 0 is no cgroup's: without an owner to compare with, only folio sizes are counted.
            counts = self._pages.count(address, length, self._owner or 0)
        except KernelError:
            return
        finally:
            self._cost += time.monotonic() - begin
        self._file.add(counts)

    def take(self, read_bytes: int) -> tuple[int | None, int | None]:
        """(owned, in large folios) of the bytes read of the file that ends here; None where nothing was counted."""
        counts, self._file = self._file, Counts()
        if read_bytes == 0:
            return (0 if self._owner else None), 0
        if not counts.pages:
            return None, None
        owned = read_bytes * counts.owned // counts.pages
        large = read_bytes * counts.large // counts.pages
        for i, value in enumerate((read_bytes, owned, large)):
            self._known[i] += value
        return (owned if self._owner else None), large

    def totals(self, read_bytes: int) -> tuple[int | None, int | None]:
        """The same of the whole job: what the files that were counted showed, applied to the rest."""
        known, owned, large = self._known
        if read_bytes == 0:
            return (0 if self._owner else None), 0
        if not known:
            return None, None
        return (read_bytes * owned // known if self._owner else None), read_bytes * large // known
