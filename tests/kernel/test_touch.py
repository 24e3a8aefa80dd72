"""Touching populated pages through process_vm_readv: no SIGBUS past a file's end, and only where a sample is slow."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from nri_warmup.inject.touch import SAMPLE_PAGES, Toucher
from nri_warmup.kernel.pagecache import Mapping
from nri_warmup.kernel.selfread import BATCH, PageReader
from nri_warmup.kernel.syscalls import PAGE_SIZE

PAGES = BATCH + 700


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
    toucher = Toucher(clock=slow_clock())
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == 0


def test_a_fast_sample_is_all_there_is(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    before = rss_file_bytes()
    toucher = Toucher(clock=lambda: 1.0)
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == 0
    assert rss_file_bytes() - before < PAGES * PAGE_SIZE // 2 + SAMPLE_PAGES * PAGE_SIZE


def test_a_slow_sample_has_the_rest_touched(mapping) -> None:  # type: ignore[no-untyped-def]
    mapped, _ = mapping
    toucher = Toucher(clock=slow_clock())
    toucher.after_populate(mapped.address, PAGES * PAGE_SIZE)
    assert toucher.touched_bytes == PAGES * PAGE_SIZE


def slow_clock():  # type: ignore[no-untyped-def]
    return itertools.count(0.0, 1.0).__next__


def rss_file_bytes() -> int:
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows["RssFile"].split()[0]) << 10
