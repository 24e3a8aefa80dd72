"""Touching populated pages through process_vm_readv: no SIGBUS past a file's end, and only where a sample is slow."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from nri_warmup.inject.touch import HALF_PAGES, Toucher
from nri_warmup.kernel.pagecache import Mapping
from nri_warmup.kernel.selfread import BATCH, PageReader
from nri_warmup.kernel.syscalls import PAGE_SIZE

PAGES = BATCH + 700
SAMPLE_PAGES = 2 * HALF_PAGES
LONG = 1e9


@pytest.fixture
def mapping(tmp_path: Path):  # type: ignore[no-untyped-def]
    path = tmp_path / "model"
    path.write_bytes(os.urandom(PAGES * PAGE_SIZE))
    with path.open("r+b") as stream, Mapping(stream.fileno(), 0, PAGES * PAGE_SIZE) as mapped:
        yield mapped, stream


def test_every_page_is_read(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    before = rss_file_bytes()
    assert PageReader().touch(mapped.address, PAGES)
    assert rss_file_bytes() - before >= PAGES * PAGE_SIZE


def test_past_the_end_of_a_file_is_no_signal(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, stream = mapping
    os.truncate(stream.fileno(), PAGE_SIZE)
    assert PageReader().touch(mapped.address, 1)
    assert not PageReader().touch(mapped.address, PAGES)
    toucher = Toucher(LONG, LONG, clock=slow_clock())
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == 0


def test_a_fast_sample_is_all_there_is(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    before = rss_file_bytes()
    toucher = Toucher(LONG, LONG, clock=lambda: 1.0)
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == 0
    assert rss_file_bytes() - before < PAGES * PAGE_SIZE // 2 + SAMPLE_PAGES * PAGE_SIZE


def test_a_slow_sample_has_the_rest_touched(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    toucher = Toucher(LONG, LONG, clock=slow_clock())
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == PAGES * PAGE_SIZE


def test_a_cpu_taken_away_once_is_no_slow_memory(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    for first, second in ((1.0, 0.0), (0.0, 1.0)):
        readings = iter((0.0, first, first, first + second))
        toucher = Toucher(LONG, LONG, clock=readings.__next__)
        toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
        assert toucher.touched_bytes == 0
        assert toucher.seconds == 1.0


def test_touching_ends_with_the_job(mapping) -> None:  # type: ignore[no-untyped-def]
    """Two readings of the clock a run, one more before each batch: the second batch would begin at 7."""
    mapped, _ = mapping
    toucher = Toucher(6.0, LONG, clock=slow_clock())
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == (SAMPLE_PAGES + BATCH) * PAGE_SIZE


def test_touching_has_a_share_of_the_jobs_time(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    toucher = Toucher(LONG, 4.0, clock=slow_clock())
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == SAMPLE_PAGES * PAGE_SIZE
    assert toucher.seconds == 2.0


def slow_clock():  # type: ignore[no-untyped-def]
    return itertools.count(0.0, 1.0).__next__


def rss_file_bytes() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows["RssFile"].split()[0]) << 10
