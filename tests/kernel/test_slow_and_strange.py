"""Kernels, file systems and neighbours that do not do as they are asked: the outcome is still right, or says it is not
known."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import itertools
import os
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_warmup.errors import KernelError
from nri_warmup.inject.files import Found
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.lease import Lease, place_of
from nri_warmup.inject.work import Work
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel import pagecache, syscalls
from nri_warmup.model.outcome import OutcomeState
from tests.kernel.containers import MIB, MemoryCgroup, drop, make_file, resident
from tests.kernel.engines import in_child, refuse, run_engine
from tests.kernel.fuse import HangingFuse
from tests.kernel.jobs import warm

# -- who is told what is resident -------------------------------------------------------------------------------------


def own_user_namespace() -> None:
    """Root of a user namespace with no other user in it, with every capability there."""
    assert ctypes.CDLL(None, use_errno=True).unshare(syscalls.CLONE_NEWUSER) == 0
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("0 0 1")
    Path("/proc/self/gid_map").write_text("0 0 1")


@pytest.mark.parametrize("cachestat", [None, errno.ENOSYS, 0], ids=["as it is", "before 6.5", "tells everybody"])
def test_a_kernel_that_lies_is_not_believed(disk: Path, cachestat: int | None) -> None:
    """mincore calls a stranger's file wholly resident. Believed, nothing would be read and all be called done."""
    mine, theirs = make_file(disk / "mine", 3 * MIB), make_file(disk / "theirs", 3 * MIB)
    os.chown(theirs, 1234, 1234)

    def look() -> object:
        own_user_namespace()
        if cachestat is not None:
            refuse("cachestat", cachestat)
        engine, report, _ = run_engine(f"{disk}/*")
        return [record[4:6] for record in report.records if record[0] == "file"], engine.resident

    assert in_child(look) == repr(([(3 * MIB, 3 * MIB), (None, 3 * MIB)], None))
    assert resident(mine) == resident(theirs) == 3 * MIB


def test_overlays_of_old_kernels_are_not_believed_in_user_namespaces(disk: Path) -> None:
    for name in ("lower", "other", "mount"):
        (disk / name).mkdir()
    (disk / "lower/model").write_bytes(b"x" * 5000)
    options = f"lowerdir={disk}/lower:{disk}/other"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(disk / "mount")], check=True)
    try:
        for path, believed in ((disk / "mount/model", False), (disk / "lower/model", True)):
            with path.open("rb") as file:
                fd = file.fileno()
                assert pagecache.tells_truth(fd, in_user_namespace=True, release=(6, 1)) is believed
                assert pagecache.tells_truth(fd, in_user_namespace=True, release=(6, 7))
                assert pagecache.tells_truth(fd, in_user_namespace=False, release=(6, 1))
    finally:
        subprocess.run(["umount", str(disk / "mount")], check=True)


# -- large pages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "huge"), [(None, True), (48 * MIB, True), (24 * MIB, False)])
def test_large_units_only_where_the_budget_holds_them(
    small_folios: Path, monkeypatch: pytest.MonkeyPatch, budget: int | None, huge: bool
) -> None:
    """A PMD of 8 MiB makes a fault read 16 MiB ahead: beyond a step of 16 MiB that is more than 24 MiB."""
    path = make_file(small_folios / "model", 64 * MIB)  # a device whose readahead is short
    advised: list[tuple[int, int]] = []
    madvise = syscalls.madvise

    def spy(address: int, length: int, advice: int) -> None:
        advised.append((advice, length))
        madvise(address, length, advice)

    monkeypatch.setattr(syscalls, "madvise", spy)
    engine, _, state = run_engine(path, pmd_bytes=8 * MIB, budget_bytes=budget)
    assert state == ("done" if budget is None else "over-budget")
    assert (syscalls.MADV_HUGEPAGE in {advice for advice, _ in advised}) is huge
    assert engine.read >= (64 * MIB if budget is None else budget - 12 * MIB)
    if budget is not None:
        assert resident(path) <= budget


# -- file systems that do not heed WILLNEED, or are slow ---------------------------------------------------------------


def test_what_willneed_does_not_bring_is_read_through(small_folios: Path, memory: MemoryCgroup) -> None:
    """As on DAX and some network file systems, where all advice is accepted and ignored. Cooled all the same."""
    paths = [make_file(small_folios / f"{i:03}", 40_000) for i in range(300)]
    holed = make_file(small_folios / "model", 8 * MIB)
    everything = (*map(str, paths), str(holed))

    def look() -> object:
        Path(memory.procs).write_text("0")
        refuse("fadvise64", 0)
        asked: list[object] = []
        will_need = pagecache.will_need
        pagecache.will_need = lambda *args: (asked.append(args), will_need(*args))[1]
        engine, report, state = run_engine(f"{small_folios}/*", max_files=1000, deadline_s=10.0)
        subprocess.run(["cat", *everything], check=True, stdout=subprocess.DEVNULL)
        states = {record[2] for record in report.records if record[0] == "file"}
        return state, states, engine.resident == engine.wanted, len(asked) < 300

    # Something on the machine may reclaim cold pages (DAMON does): those come back active. Not every time.
    for _ in range(4):
        drop_all(paths)
        drop(holed)
        with holed.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for offset in range(0, 8 * MIB, 2 * MIB):
                os.pread(file.fileno(), 4096, offset)  # a page of each piece is somebody else's: all the rest is gaps
        assert in_child(look) == repr(("done", {"warmed"}, True, True)), "asked twice, and a device once in all"
        if memory.stat("active_file") <= MIB:
            return
    text = f"{memory.stat('active_file')} bytes are active"
    if any(
        (p / "comm").read_text().startswith("kdamond") for p in Path("/proc").glob("[0-9]*") if (p / "comm").exists()
    ):
        pytest.skip(f"DAMON reclaims on this host, and what it took comes back active: {text}")
    pytest.fail(text)


def drop_all(paths: list[Path]) -> None:
    for path in paths:
        drop(path)


@pytest.mark.parametrize("size", [100_000, 8 * MIB])
def test_a_first_byte_that_takes_its_time(disk: Path, size: int) -> None:
    """Object stores and tapes: later than any fixed limit that a disk would keep."""
    once = threading.Event()

    def late() -> None:
        if not once.is_set():
            once.set()
            threading.Event().wait(2.5)

    with HangingFuse(disk / "mnt", hang=False, size=size, asynchronous=True, on_read=late) as fuse:
        outcome = warm(WarmJob(id="x", patterns=(str(fuse.file),), deadline_s=20.0))
    assert outcome.state is OutcomeState.DONE, outcome
    assert outcome.resident_bytes == size


# -- one job per file -------------------------------------------------------------------------------------------------


class Holder:
    """Another job that holds a file: a lock on its place in the common file."""

    def __init__(self, lease: Path, path: Path) -> None:
        lease.touch()
        self.fd = os.open(lease, os.O_RDWR)
        self.ours = os.open(lease, os.O_RDWR)
        self.model = os.open(path, os.O_RDONLY)
        status = os.fstat(self.model)
        place = place_of(status.st_dev, status.st_ino)
        fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
        self.work = Work(Found(str(path), status), self.model, [(0, status.st_size)], True)
        self.at = 0

    def read(self, amount: int) -> None:
        self.at += len(os.pread(self.model, amount, self.at))

    def close(self) -> None:
        for fd in (self.fd, self.ours, self.model):
            os.close(fd)


@pytest.fixture
def holder(disk: Path) -> Iterator[Holder]:
    held = Holder(disk / "lease", make_file(disk / "model", 96 * MIB))
    os.posix_fadvise(held.model, 0, 0, os.POSIX_FADV_RANDOM)
    yield held
    held.close()


def quarters() -> Callable[[], float]:
    """A clock that goes on by a quarter of a second whenever it is looked at: once between two calls of ``tick``."""
    return itertools.count(0.0, 0.25).__next__


def test_a_holder_that_gets_on_is_waited_for(holder: Holder, disk: Path) -> None:
    """16 MiB a second, for six seconds."""
    lease = Lease(holder.ours, 1.5, clock=quarters())
    assert not lease.take(holder.work, lambda: holder.read(4 * MIB))
    # A pass of plain reads can leave out a page here and there: whoever waits then gives up and reads those.
    assert resident(disk / "model") >= 95 * MIB, "until nothing is left to do"


def test_a_holder_that_lets_go_leaves_the_rest_to_us(holder: Holder) -> None:
    calls = iter(range(1000))

    def tick() -> None:
        if next(calls) == 3:
            os.close(holder.fd)
            holder.fd = os.dup(holder.model)

    assert Lease(holder.ours, wait_s=60).take(holder.work, tick)


@pytest.mark.parametrize("amount", [0, 4096])
def test_a_holder_that_is_too_slow_is_not_waited_for(holder: Holder, amount: int) -> None:
    """It runs on its own container's CPU and disk share, or means harm: 16 KiB a second are as good as nothing."""
    ticks = itertools.count(1)

    def tick() -> None:
        assert next(ticks) < 10
        holder.read(amount)

    assert not Lease(holder.ours, 1.5, clock=quarters()).take(holder.work, tick)
    assert next(ticks) >= 6


def test_a_file_of_which_nothing_is_known_is_waited_for_once(holder: Holder) -> None:
    holder.work.truthful = False
    assert not Lease(holder.ours, 1.5, clock=quarters()).take(holder.work, lambda: holder.read(4 * MIB))
    assert holder.at < 96 * MIB


def test_the_same_inode_on_another_device_is_another_file(holder: Holder) -> None:
    holder.work.found.device += 1
    assert Lease(holder.ours, wait_s=60).take(holder.work, lambda: pytest.fail("waited"))


def test_waiting_ends_with_the_job(holder: Holder) -> None:
    def deadline() -> None:
        raise KernelError("deadline", 0)

    assert not Lease(holder.ours, wait_s=60).take(holder.work, deadline)


def test_a_file_held_by_somebody_who_does_nothing_is_warmed(disk: Path) -> None:
    path = make_file(disk / "model", 8 * MIB)
    held = Holder(disk / "lease", path)
    try:

        async def main() -> None:
            async with Injector(lease_path=str(disk / "lease")) as injector:
                outcome = await injector.run(WarmJob(id="x", patterns=(str(path),), deadline_s=60))
            assert (outcome.state, outcome.read_bytes) == (OutcomeState.DONE, 8 * MIB), outcome
            assert 2 <= outcome.seconds < 20

        asyncio.run(main())
    finally:
        held.close()


def test_two_daemons_read_a_file_once(disk: Path) -> None:
    path = make_file(disk / "model", 64 * MIB)
    lease = str(disk / "lease")

    async def main() -> list[int]:
        async with Injector(lease_path=lease) as one, Injector(lease_path=lease) as two:
            outcomes = await asyncio.gather(*(each.run(WarmJob(id="x", patterns=(str(path),))) for each in (one, two)))
        assert all(outcome.coverage == 1.0 for outcome in outcomes)
        return sorted(outcome.read_bytes for outcome in outcomes)

    assert asyncio.run(main()) == [0, 64 * MIB]


def test_without_a_place_for_leases_files_are_warmed_all_the_same(disk: Path) -> None:
    path = make_file(disk / "model", 3 * MIB)

    async def main() -> OutcomeState:
        async with Injector(lease_path=str(disk / "no/such/lease")) as injector:
            return (await injector.run(WarmJob(id="x", patterns=(str(path),)))).state

    assert asyncio.run(main()) is OutcomeState.DONE
