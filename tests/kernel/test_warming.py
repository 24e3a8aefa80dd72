"""What warming does to files, to the page cache and to its owner, on this machine's own kernel."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel import pagecache, syscalls
from nri_warmup.kernel.pagecache import PIECE, Mapping
from nri_warmup.model.outcome import OutcomeState
from nri_warmup.model.profile import Residency
from nri_warmup.model.warmset import FileState
from tests.kernel.containers import (
    MIB,
    MemoryCgroup,
    container,
    counts,
    drop,
    make_file,
    memory_cgroup,
    read_all,
    resident,
    wait_for,
)
from tests.kernel.engines import in_child, refuse, run_engine
from tests.kernel.jobs import warm


def job(*patterns: Path | str, memory: MemoryCgroup | None = None, **fields: object) -> WarmJob:
    values: dict[str, object] = {"id": "test", "patterns": tuple(map(str, patterns)), "deadline_s": 60.0}
    values["cgroup_procs"] = (memory.procs,) if memory else ()
    return WarmJob(**(values | fields))  # type: ignore[arg-type]


# -- whole files, any kind
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "sendfile"])
@pytest.mark.parametrize("size", [1, 4096, 100_001, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 37 * MIB + 4097])
def test_everything_of_a_file_is_resident_and_charged(disk: Path, memory: MemoryCgroup, size: int, method: str) -> None:
    path = make_file(disk / "model", size)
    outcome = warm(job(path, memory=memory, method=method))
    assert outcome.state is OutcomeState.DONE, outcome
    assert outcome.charged
    assert outcome.wanted_bytes == outcome.resident_bytes == outcome.read_bytes == size == resident(path)
    assert outcome.coverage == 1.0
    assert outcome.files_total == len(outcome.files) == 1
    owned = counts(path, memory.inode)
    assert owned.owned == owned.pages == -(-size // 4096)
    if method == "auto" or size >= 2 * MIB:
        assert outcome.owned_bytes == size


def test_many_small_files(disk: Path, memory: MemoryCgroup) -> None:
    for i in range(300):
        (disk / f"{i:03}").write_bytes(os.urandom(1 + i * 317))
    os.sync()
    for i in range(300):
        drop(disk / f"{i:03}")
    outcome = warm(job(disk / "*", memory=memory))
    assert outcome.state is OutcomeState.DONE, outcome
    assert outcome.files_total == 300
    assert all(resident(disk / f"{i:03}") == 1 + i * 317 for i in range(300))
    assert outcome.owned is not None and outcome.owned >= 0.99


def test_what_is_there_already_is_not_read_and_not_counted(disk: Path, memory: MemoryCgroup) -> None:
    path = make_file(disk / "model", 8 * MIB)
    first = warm(job(path))
    again = warm(job(path, memory=memory))
    assert first.read_bytes == 8 * MIB
    assert (again.state, again.read_bytes, again.resident_bytes) == (OutcomeState.DONE, 0, 8 * MIB)
    assert counts(path, memory.inode).owned == 0


def test_files_of_any_user_are_told_truthfully(disk: Path) -> None:
    """Also those that root without its usual capabilities could neither read nor ask about."""
    path = make_file(disk / "model", 3 * MIB)
    os.chown(path, 1234, 1234)
    path.chmod(0o400)
    small = make_file(disk / "small", 5000)
    os.chown(small, 1234, 1234)
    outcome = warm(job(path, small))
    assert (outcome.state, outcome.resident_bytes) == (OutcomeState.DONE, 3 * MIB + 5000), outcome


def test_measuring_only_reads_nothing(disk: Path, memory: MemoryCgroup) -> None:
    there, absent = make_file(disk / "there", 4 * MIB), make_file(disk / "absent", 4 * MIB)
    subprocess.run(read_all(there), check=True)
    outcome = warm(job(disk / "*", memory=memory, measure_only=True))
    assert outcome.state is OutcomeState.OBSERVED, outcome
    assert (outcome.wanted_bytes, outcome.resident_bytes, outcome.read_bytes) == (8 * MIB, 4 * MIB, 0)
    assert resident(absent) == 0


def test_sparse_file(disk: Path) -> None:
    path = disk / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        for offset in (0, 5 * MIB + 4096, 1 << 39):
            file.seek(offset)
            file.write(os.urandom(3 * MIB))
    os.sync()
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    outcome = warm(job(path))
    assert outcome.state is OutcomeState.DONE, outcome
    assert outcome.wanted_bytes == outcome.resident_bytes == 9 * MIB
    assert "holes left out" in outcome.files[0].detail
    assert outcome.seconds < 20


def test_a_file_that_is_only_a_hole(disk: Path) -> None:
    with (disk / "hole").open("wb") as file:
        file.truncate(16 * MIB)
    outcome = warm(job(disk / "hole"))
    assert (outcome.state, outcome.wanted_bytes, outcome.read_bytes) == (OutcomeState.DONE, 0, 0)


def test_empty_missing_and_duplicate(disk: Path) -> None:
    (disk / "empty").touch()
    path = make_file(disk / "model", 3 * MIB)
    os.link(path, disk / "twin")
    outcome = warm(job(disk / "empty", path, disk / "twin", disk / "missing"))
    states = {Path(file.path).name: file.state for file in outcome.files}
    assert states == {"empty": FileState.EMPTY, "model": FileState.WARMED, "missing": FileState.VANISHED}
    assert outcome.state is OutcomeState.PARTIAL
    assert outcome.wanted_bytes == outcome.read_bytes == 3 * MIB


@pytest.mark.parametrize("populate", [True, False])
def test_truncated_while_it_is_read(disk: Path, populate: bool) -> None:
    """EFAULT, not SIGBUS: this very process would die of that."""
    path = make_file(disk / "model", 128 * MIB)
    engine, report, state = run_engine(path, lambda: os.truncate(path, 20 * MIB + 100), populate=populate)
    files = [record for record in report.records if record[0] == "file"]
    assert state == "partial"
    assert len(files) == 1 and files[0][2] == "shrank", files
    assert files[0][9] == f"{128 * MIB} bytes when opened, {20 * MIB + 100} now"
    assert engine.resident is not None and engine.resident <= 20 * MIB + 4096


def test_a_kernel_that_cannot_populate(disk: Path, memory: MemoryCgroup) -> None:
    """Found out by trying, file by file; what is read through instead is cooled all the same."""
    path = make_file(disk / "model", 40 * MIB)

    def look() -> object:
        Path(memory.procs).write_text("0")
        refuse("madvise", errno.EINVAL, argument=(2, syscalls.MADV_POPULATE_READ))
        engine, report, state = run_engine(path)
        files = [record for record in report.records if record[0] == "file"]
        return state, engine.resident, files[0][2], files[0][8]

    answer = in_child(look)
    assert answer == repr(("done", 40 * MIB, "warmed", False))
    memory.run(*read_all(path))
    assert active(memory) <= MIB


def test_unlinked_while_it_is_read(disk: Path) -> None:
    path = make_file(disk / "model", 64 * MIB)
    engine, _, state = run_engine(path, path.unlink)
    assert state == "done"
    assert engine.resident == 64 * MIB


def test_progress_grows_and_is_bounded(disk: Path) -> None:
    path = make_file(disk / "model", 64 * MIB)
    _, report, _ = run_engine(path)
    reads = [record[3] for record in report.records if record[0] == "progress"]
    assert reads == sorted(reads)  # type: ignore[type-var]
    assert reads[0] == 0 and reads[-1] == 48 * MIB


# -- budget and limits
# -----------------------------------------------------------------------------------------------------


def test_budget_is_kept_under_a_limit(disk: Path, memory: MemoryCgroup) -> None:
    """A model larger than the container's limit: what fits the budget, nothing killed, nothing read twice."""
    path = make_file(disk / "model", 192 * MIB)
    memory.limit(64 * MIB)
    outcome = warm(job(path, memory=memory, budget_bytes=40 * MIB, readahead_bytes=8 * MIB))
    assert outcome.state is OutcomeState.OVER_BUDGET, outcome
    assert 24 * MIB <= outcome.read_bytes <= 40 * MIB
    assert outcome.resident_bytes == outcome.read_bytes
    assert resident(path) <= 40 * MIB, "what the kernel read past the end is within the budget, too"
    assert memory.usage() <= 48 * MIB
    if memory.version == 1:
        assert int((memory.path / "memory.failcnt").read_text()) == 0


@pytest.mark.parametrize("method", ["auto", "sendfile"])
def test_a_limit_without_a_budget_kills_nobody_but_ends_as_an_outcome(
    disk: Path, memory: MemoryCgroup, method: str
) -> None:
    path = make_file(disk / "model", 128 * MIB)
    memory.limit(24 * MIB)
    outcome = warm(job(path, memory=memory, method=method))
    assert outcome.state in (OutcomeState.PARTIAL, OutcomeState.OVER_BUDGET, OutcomeState.FAILED), outcome
    assert outcome.reason
    assert memory.usage() <= 24 * MIB


def test_a_container_that_has_used_up_its_memory_survives(disk: Path, memory: MemoryCgroup) -> None:
    """Whom the OOM killer takes, if it comes to that, is the worker; how it ends is an outcome."""
    root = disk / "rootfs"
    root.mkdir()
    make_file(root / "model", 96 * MIB)
    memory.limit(48 * MIB)
    hog = "import sys; block = bytearray(36 << 20); print('full', flush=True); sys.stdin.read()"
    with container(root, cgroups=[memory.path]) as box:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", f"open({memory.procs!r}, 'w').write('0'); {hog}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == b"full\n"
            outcome = warm(WarmJob(id="x", pid=box.pid, patterns=("/model",), deadline_s=30))
            assert outcome.state in (OutcomeState.PARTIAL, OutcomeState.OVER_BUDGET, OutcomeState.FAILED), outcome
            assert outcome.reason
            assert process.poll() is None and box.process.poll() is None
        finally:
            process.kill()
            process.communicate()


def test_a_container_that_has_used_up_its_processes(disk: Path) -> None:
    pids = Path("/sys/fs/cgroup/pids")
    if not (pids / "cgroup.procs").exists():
        pytest.skip("no v1 pids controller")
    group = pids / f"nri-warmup-test-{os.getpid()}"
    group.mkdir()
    try:
        root = disk / "rootfs"
        root.mkdir()
        make_file(root / "model", 3 * MIB)
        with container(root, cgroups=[group]) as box:
            (group / "pids.max").write_text("1")
            outcome = warm(WarmJob(id="x", pid=box.pid, patterns=("/model",)))
        assert outcome.state is OutcomeState.DONE, outcome
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the cgroup to be empty")
        group.rmdir()


def test_max_bytes_cuts_by_file(disk: Path) -> None:
    for name in "abc":
        make_file(disk / name, 3 * MIB)
    outcome = warm(job(disk / "?", max_bytes=7 * MIB))
    assert outcome.state is OutcomeState.OVER_BUDGET
    assert [file.state.value for file in outcome.files] == ["over-budget", "warmed", "warmed"]
    assert outcome.read_bytes == 6 * MIB and resident(disk / "c") == 0


# -- what is left on the LRU
# -----------------------------------------------------------------------------------------------


def active(memory: MemoryCgroup) -> int:
    """Bytes; the kernel gathers this per CPU, so it can be late by some dozens of pages."""
    return memory.stat("active_file")


@pytest.mark.parametrize("method", ["auto", "sendfile"])
def test_inactive_after_the_servers_own_read(disk: Path, memory: MemoryCgroup, method: str) -> None:
    """As without a warm-up. sendfile without the last step leaves everything active (kubelet evicts for that)."""
    path = make_file(disk / "model", 96 * MIB)
    before = active(memory)
    assert warm(job(path, memory=memory, method=method)).state is OutcomeState.DONE
    memory.run(*read_all(path))
    assert active(memory) - before <= MIB
    assert memory.stat("inactive_file") >= 90 * MIB


def test_residency_active_is_active_after_the_servers_read(disk: Path, memory: MemoryCgroup) -> None:
    """Whatever the size of the folios: what was asked for is not left to the file system."""
    path = make_file(disk / "model", 64 * MIB)
    assert warm(job(path, memory=memory, residency=Residency.ACTIVE)).state is OutcomeState.DONE
    memory.run(*read_all(path))
    assert active(memory) >= 60 * MIB


def test_inactive_with_small_folios(small_folios: Path, memory: MemoryCgroup) -> None:
    """Where pages are 4 KiB, populating alone marks them referenced and the server's read makes the model active."""
    path = make_file(small_folios / "model", 64 * MIB)
    outcome = warm(job(path, memory=memory))
    assert outcome.state is OutcomeState.DONE
    assert outcome.large_folio_bytes == 0 and outcome.owned_bytes == 64 * MIB
    memory.run(*read_all(path))
    assert active(memory) <= MIB
    drop(path)
    assert warm(job(path, memory=memory, residency=Residency.ACTIVE)).state is OutcomeState.DONE
    memory.run(*read_all(path))
    assert active(memory) >= 60 * MIB, "this kernel does not show what the test above is about"


def test_small_files_stay_inactive(small_folios: Path, memory: MemoryCgroup) -> None:
    """Completion by mincore and not by reading a byte; measured files are cooled again."""
    paths = [make_file(small_folios / f"{i:03}", 40_000) for i in range(200)]
    outcome = warm(job(small_folios / "???", memory=memory))
    assert outcome.state is OutcomeState.DONE and outcome.owned == 1.0
    memory.run("sh", "-c", 'cat "$@" > /dev/null', "sh", *map(str, paths))
    assert active(memory) <= 40_960


def test_large_folios_are_kept(disk: Path, memory: MemoryCgroup) -> None:
    path = make_file(disk / "model", 96 * MIB)
    outcome = warm(job(path, memory=memory))
    found = counts(path, memory.inode)
    if not has_large_folios(disk):
        assert outcome.large_folio_bytes == 0
        pytest.skip("this file system has no large folios")
    assert found.large / found.pages >= 0.99, "split by MADV_COLD"
    assert outcome.large_folio_bytes is not None and outcome.large_folio_bytes >= 0.99 * outcome.read_bytes
    assert found.active == 0


def has_large_folios(disk: Path) -> bool:
    """Asked of a plain read of another file, so that the test above is not its own witness."""
    path = make_file(disk / "probe", 32 * MIB)
    subprocess.run(read_all(path), check=True)
    return counts(path, 0).large > 0


def test_somebody_elses_active_pages_are_left_alone(small_folios: Path, memory: MemoryCgroup) -> None:
    """The half that another container had made active stays active and its own; the rest is ours and inactive."""
    path = make_file(small_folios / "model", 64 * MIB)
    with memory_cgroup("nri-warmup-other") as other:
        for _ in range(2):
            other.run("dd", f"if={path}", "of=/dev/null", "bs=1M", "count=32", "status=none")
        before = active(other)
        assert before >= 31 * MIB
        outcome = warm(job(path, memory=memory))
        assert outcome.state is OutcomeState.DONE
        assert active(other) >= before - MIB, "cooled"
        assert 20 * MIB <= outcome.read_bytes <= 32 * MIB
        assert active(memory) <= MIB


def test_a_piece_with_foreign_pages_is_filled_without_touching_them(small_folios: Path, memory: MemoryCgroup) -> None:
    """Gaps of less than 2 MiB: read by readahead windows, never populated, never cooled."""
    path = make_file(small_folios / "model", 8 * MIB)
    with memory_cgroup("nri-warmup-other") as other:
        for _ in range(2):
            read_pages(path, 700, 200, other)
        before, there = active(other), resident(path)
        assert before >= 100 * 4096 and there < 2 * MIB
        outcome = warm(job(path, memory=memory))
        assert outcome.state is OutcomeState.DONE and resident(path) == 8 * MIB
        assert outcome.read_bytes == 8 * MIB - there
        assert active(other) >= before - 64 * 4096, "cooled"


def read_pages(path: Path, first: int, count: int, group: MemoryCgroup) -> None:
    """Page by page and without readahead. (One page alone would wait in a per-CPU batch before it is active.)"""
    code = (
        "import os,sys; fd=os.open(sys.argv[1],os.O_RDONLY); os.posix_fadvise(fd,0,0,os.POSIX_FADV_RANDOM);"
        "[os.pread(fd,4096,4096*(int(sys.argv[2])+i)) for i in range(int(sys.argv[3]))]"
    )
    group.run(sys.executable, "-I", "-S", "-c", code, str(path), str(first), str(count))


def test_pieces_are_cooled_whole_and_aligned() -> None:
    """In file offset and in address, whatever the file system's own alignment of mappings."""
    fd = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        for offset in (0, 4096, PIECE, PIECE + 8192):
            with Mapping(fd, offset, 3 * PIECE) as mapping:
                assert mapping.address % PIECE == offset % PIECE
    finally:
        os.close(fd)


# -- one job per file
# ------------------------------------------------------------------------------------------------------


def test_two_jobs_for_one_file_read_it_once(disk: Path, memory: MemoryCgroup) -> None:
    path = make_file(disk / "model", 64 * MIB)

    async def main() -> list[int]:
        async with Injector() as injector:
            jobs = [job(path, memory=memory, id=name) for name in "abc"]  # type: ignore[arg-type]
            outcomes = await asyncio.gather(*(injector.run(each) for each in jobs))
        assert all(outcome.state is OutcomeState.DONE and outcome.coverage == 1.0 for outcome in outcomes)
        return sorted(outcome.read_bytes for outcome in outcomes)

    assert asyncio.run(main()) == [0, 0, 64 * MIB]


# -- the rest
# --------------------------------------------------------------------------------------------------------------


def test_placement(disk: Path) -> None:
    """CPU and memory policy of the job are the worker's: seen in where it may run."""
    path = make_file(disk / "model", 3 * MIB)
    outcome = warm(job(path, cpus=(0,), nodes=(0,)))
    assert outcome.state is OutcomeState.DONE
    outcome = warm(job(path, nodes=(1023,)))
    assert outcome.state is OutcomeState.FAILED and "set_mempolicy" in outcome.reason


def test_internal_node_of_v2_cannot_be_joined(disk: Path) -> None:
    unified = next((m for m in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in m), None)
    if unified is None:
        pytest.skip("no cgroup2 mount")
    top = Path(unified.split()[4])
    controllers = (top / "cgroup.controllers").read_text().split()
    if not controllers or controllers[0] not in (top / "cgroup.subtree_control").read_text().split():
        pytest.skip("no controller is enabled below the cgroup2 root")
    inner = top / f"nri-warmup-test-{os.getpid()}"
    inner.mkdir()
    try:
        (inner / "leaf").mkdir()
        (inner / "cgroup.subtree_control").write_text(f"+{controllers[0]}")
        outcome = warm(job(make_file(disk / "m", 3 * MIB), cgroup_procs=(str(inner / "cgroup.procs"),)))
        assert "not in cgroup" in outcome.reason and "EBUSY" in outcome.reason
        assert not outcome.charged and outcome.owned_bytes is None
    finally:
        (inner / "leaf").rmdir()
        inner.rmdir()


def test_vanished_cgroup_is_a_container_gone(disk: Path) -> None:
    outcome = warm(job(make_file(disk / "m", 3 * MIB), cgroup_procs=("/sys/fs/cgroup/no/such/cgroup.procs",)))
    assert outcome.state is OutcomeState.CONTAINER_GONE, outcome


def test_absent_runs_are_those_that_mincore_shows(disk: Path) -> None:
    path = make_file(disk / "model", 8 * MIB)
    with path.open("rb") as file:
        fd = file.fileno()
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(fd, 4096, 3 * 4096)
        os.pread(fd, 4096, 7 * MIB)
        with Mapping(fd, 0, 8 * MIB) as mapping:
            vector = mapping.residency(0, 8 * MIB)
            runs = pagecache.absent_runs(vector, 0, 8 * MIB)
    present = 8 * MIB - sum(end - start for start, end in runs)
    assert runs[0] == (0, 3 * 4096)
    assert 0 < present < MIB
