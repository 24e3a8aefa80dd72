from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nri_warmup.daemon.registry import Entry, Registry, WarmedLog, bounded, slim
from nri_warmup.model.lifecycle import Container, Pod
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.model.plan import EMPTY_PLAN
from nri_warmup.model.warmset import FileOutcome, FileState


def _entry(container_id: str, pod_id: str = "p") -> Entry:
    return Entry(pod=Pod(id=pod_id, name="n"), container=Container(id=container_id, pod_id=pod_id), plan=EMPTY_PLAN)


def test_entries_come_and_go_with_their_pod() -> None:
    registry = Registry()
    registry.add(_entry("a"))
    registry.add(_entry("b"))
    assert "a" in registry and registry.has_pod("p") and len(registry) == 2
    assert {e.container.id for e in registry.of_pod("p")} == {"a", "b"}
    registry.remove("a")
    assert registry.has_pod("p")
    registry.remove("b")
    assert not registry.has_pod("p") and len(registry) == 0
    assert [e.container.id for e in registry.history] == ["a", "b"]
    assert registry.remove("b") is None


def test_the_history_is_bounded() -> None:
    registry = Registry()
    for number in range(500):
        registry.add(_entry(str(number)))
        registry.remove(str(number))
    assert len(registry.history) == 200


def test_what_was_warmed_survives_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "warmed")
    WarmedLog(path).add("a", OutcomeState.DONE)
    log = WarmedLog(path)
    log.add("b", OutcomeState.PARTIAL)
    assert (log.state("a"), log.state("b"), log.state("c")) == (OutcomeState.DONE, OutcomeState.PARTIAL, None)
    log.retain({"b"})
    assert WarmedLog(path).state("a") is None and WarmedLog(path).state("b") is OutcomeState.PARTIAL


def test_the_list_on_disk_does_not_grow_with_containers_that_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "warmed"
    log = WarmedLog(str(path))
    for number in range(5000):
        log.add(f"id{number}", OutcomeState.DONE)
        log.discard(f"id{number}")
    assert len(path.read_text().splitlines()) < 1100


def test_an_outcome_is_kept_bounded_and_the_worst_first() -> None:
    good = FileOutcome(path="/" + "g" * 5000, state=FileState.WARMED)
    bad = FileOutcome(path="/bad", state=FileState.UNREADABLE, detail="d" * 9000)
    outcome = bounded(Outcome(state=OutcomeState.PARTIAL, files=(good,) * 900 + (bad,), reason="r" * 9000))
    assert len(outcome.files) == 20 and outcome.files[0].path == "/bad"
    assert max(len(f.path) + len(f.detail) for f in outcome.files) <= 512 and len(outcome.reason) <= 256


def test_an_entry_keeps_nothing_that_a_tenant_sizes() -> None:
    registry = Registry()
    big = (("k", "v" * 100_000),)
    entry = _entry("a")
    entry.pod = replace(entry.pod, annotations=big, labels=big)
    entry.container = replace(entry.container, annotations=big, args=("x" * 100_000,), env=("y" * 100_000,))
    registry.add(entry)
    slim(entry)
    assert entry.pod.annotations == () and entry.container.args == () and entry.container.env == ()


def test_an_unreadable_or_unwritable_list_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "warmed"
    path.write_bytes(b"\xff\xfe\n")
    assert WarmedLog(str(path)).state("a") is None
    log = WarmedLog(str(tmp_path / "missing" / "warmed"))
    log.add("a", OutcomeState.DONE)
    log.retain(set())
    assert log.state("a") is None
    assert WarmedLog(None).state("a") is None
