from __future__ import annotations

from pathlib import Path

from nri_warmup.daemon.registry import Entry, Registry, WarmedLog
from nri_warmup.model.lifecycle import Container, Pod
from nri_warmup.model.plan import EMPTY_PLAN


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
    WarmedLog(path).add("a")
    log = WarmedLog(path)
    log.add("b")
    assert "a" in log and "b" in log and "c" not in log
    log.retain({"b"})
    assert "a" not in WarmedLog(path) and "b" in WarmedLog(path)


def test_an_unreadable_or_unwritable_list_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "warmed"
    path.write_bytes(b"\xff\xfe\n")
    assert "a" not in WarmedLog(str(path))
    log = WarmedLog(str(tmp_path / "missing" / "warmed"))
    log.add("a")
    log.retain(set())
    assert "a" not in log
    assert "a" not in WarmedLog(None)
