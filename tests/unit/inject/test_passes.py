"""A second pass as the container's own user: what it may still read, and what came of both together."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_warmup.inject import target
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.lease import place_of
from nri_warmup.inject.running import merge
from nri_warmup.inject.wire import Task
from nri_warmup.kernel.root import Root
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.model.warmset import FileOutcome, FileState

MIB = 1 << 20
PMD = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"


def file(path: str, state: FileState, wanted: int = 0, resident: int | None = None) -> FileOutcome:
    return FileOutcome(path=path, state=state, wanted_bytes=wanted, resident_bytes=resident, read_bytes=resident or 0)


FIRST = Outcome(
    state=OutcomeState.PARTIAL,
    reason="not everything wanted is resident",
    wanted_bytes=8 * MIB,
    resident_bytes=8 * MIB,
    read_bytes=8 * MIB,
    files_total=2,
    files=(file("/a", FileState.WARMED, 8 * MIB, 8 * MIB), file("/b", FileState.UNREADABLE)),
)
SECOND = Outcome(
    state=OutcomeState.DONE,
    wanted_bytes=4 * MIB,
    resident_bytes=4 * MIB,
    read_bytes=4 * MIB,
    files_total=1,
    files=(file("/b", FileState.WARMED, 4 * MIB, 4 * MIB),),
)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text("Name:\tx\nUid:\t0\t1234\t0\t0\nGid:\t0\t1234\t0\t0\n")
    return Root(str(tmp_path))


@pytest.mark.parametrize(("budget", "left"), [(10 * MIB, 2 * MIB), (5 * MIB, 0), (None, None)])
def test_the_second_pass_has_what_the_first_has_left(root: Root, budget: int | None, left: int | None) -> None:
    task = Task()
    task.max_bytes, task.budget_bytes = 9 * MIB, budget
    again = target.retry_as_owner(root, WarmJob(id="x", pid=7), task, FIRST)
    assert again is not None
    assert (again.patterns, again.uid, again.gid) == (("/b",), 1234, 1234)
    assert (again.max_bytes, again.budget_bytes) == (MIB, left)
    assert (task.max_bytes, task.budget_bytes) == (9 * MIB, budget)


def test_both_passes_together() -> None:
    outcome = merge(FIRST, SECOND, FIRST)
    assert (outcome.state, outcome.reason) == (OutcomeState.DONE, "")
    assert outcome.wanted_bytes == outcome.resident_bytes == outcome.read_bytes == 12 * MIB
    assert [item.state for item in outcome.files] == [FileState.WARMED] * 2


def test_what_the_second_pass_drove_out_is_not_there() -> None:
    checked = Outcome(
        state=OutcomeState.OBSERVED,
        resident_bytes=3 * MIB,
        files=(file("/a", FileState.WARMED, 8 * MIB, 3 * MIB), file("/b", FileState.UNREADABLE)),
    )
    outcome = merge(FIRST, SECOND, checked)
    assert outcome.state is OutcomeState.PARTIAL and "driven out" in outcome.reason
    assert outcome.resident_bytes == 7 * MIB and outcome.coverage == pytest.approx(7 / 12)
    assert (outcome.files[0].state, outcome.files[0].resident_bytes) == (FileState.PARTIAL, 3 * MIB)


def test_what_was_not_measured_again_is_not_known() -> None:
    outcome = merge(FIRST, SECOND, None)
    assert outcome.resident_bytes is None and outcome.coverage is None


@pytest.mark.parametrize(
    ("text", "expected"), [("33554432\n", 32 * MIB), ("0\n", 2 * MIB), ("x", 2 * MIB), (None, 2 * MIB)]
)
def test_the_size_of_a_pmd_is_the_kernels_word(tmp_path: Path, text: str | None, expected: int) -> None:
    if text is not None:
        (tmp_path / PMD).parent.mkdir(parents=True)
        (tmp_path / PMD).write_text(text)
    assert target.prepare(Root(str(tmp_path)), WarmJob(id="x"), None).pmd_bytes == expected


def test_a_lease_is_one_devices() -> None:
    """A tenant's own file system can give a file any inode number."""
    places = {place_of(device, inode) for device in range(40) for inode in range(40)}
    assert len(places) == 1600
    assert all(0 <= place < 1 << 62 for place in places)
