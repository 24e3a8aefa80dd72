"""The arithmetic of residency vectors, holes and page frames."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from nri_warmup.kernel import pagecache, pagemap
from nri_warmup.kernel.syscalls import PAGE_SIZE as P


def test_absent_runs() -> None:
    runs = pagecache.absent_runs
    assert runs(b"", 0, 0) == []
    assert runs(b"\1\1", 0, 2 * P) == []
    assert runs(b"\0\0", 8 * P, 10 * P) == [(8 * P, 10 * P)]
    assert runs(b"\0\1\0\0\1\0", 0, 6 * P - 5) == [(0, P), (2 * P, 4 * P), (5 * P, 6 * P - 5)]


def test_data_ranges(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        for offset in (1 << 20, 3 << 20):
            file.seek(offset)
            file.write(b"x" * 10_000)
        file.flush()
        fd = file.fileno()
        ranges = pagecache.data_ranges(fd, 1 << 30, 100)
        assert len(ranges) in (1, 2)  # one where the file system knows no holes
        if len(ranges) == 2:
            assert ranges == [(1 << 20, (1 << 20) + 3 * P), (3 << 20, (3 << 20) + 3 * P)]
            assert pagecache.data_ranges(fd, 1 << 30, 1) == [(1 << 20, (1 << 20) + 3 * P), (3 << 20, 1 << 30)]


def test_data_ranges_end_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x" * 100)
    fd = os.open(tmp_path / "small", os.O_RDONLY)
    assert pagecache.data_ranges(fd, 100, 10) == [(0, 100)]
    os.close(fd)


def test_frames_are_grouped_into_few_reads() -> None:
    folio = list(range(1000, 1512))
    assert pagemap._spans(folio) == [(1000, folio)]
    near = [5, 6, 7, 15, 16, 40, 41]
    assert pagemap._spans(near) == [(5, [5, 6, 7, 15, 16]), (40, [40, 41])]
    assert pagemap._spans([]) == []
    assert pagemap._spans([9]) == [(9, [9])]
    scattered = [i * 100 for i in range(50)]
    assert [span[0] for span in pagemap._spans(scattered)] == scattered
    mixed = sorted({*range(100, 612), *range(700, 701), *range(2048, 4096, 2)})
    spans = pagemap._spans(mixed)
    assert [frame for _, frames in spans for frame in frames] == mixed
    assert all(b - a <= pagemap._GAP for _, frames in spans for a, b in itertools.pairwise(frames))
