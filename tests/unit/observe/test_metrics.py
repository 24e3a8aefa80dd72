"""The table of metrics: declared equals produced, bounded labels, a format that Prometheus' own parser reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nri_warmup.observe import metrics
from nri_warmup.observe.metrics import TABLE, Registry


def _parse(text: str) -> dict[str, object]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_names_follow_the_conventions() -> None:
    for metric in TABLE:
        assert re.fullmatch(r"nri_warmup_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith(("_seconds", "_bytes"))
        assert metric.help.endswith("."), metric.name


def test_everything_declared_can_be_produced_and_parsed() -> None:
    registry = Registry()
    for metric in TABLE:
        labels = {label: next(iter(sorted(allowed))) if allowed else "x" for label, allowed in metric.labels}
        if metric.kind == "histogram":
            registry.observe(metric.name, 0.3)
        elif metric.kind == "counter":
            registry.inc(metric.name, 2, **labels)
        else:
            registry.set(metric.name, 3, **labels)
    families = _parse(registry.render())
    assert set(families) == {m.name.removesuffix("_total") for m in TABLE}


def test_everything_declared_is_produced_somewhere() -> None:
    package = Path(metrics.__file__).parents[1]
    sources = "".join(p.read_text() for p in package.rglob("*.py") if p.name != "metrics.py")
    assert [m.name for m in TABLE if f'"{m.name}"' not in sources] == []


def test_a_histogram_counts_each_value_once_and_cumulates() -> None:
    registry = Registry()
    for value in (0.0005, 0.3, 1e9):
        registry.observe("nri_warmup_warmup_seconds", value)
    text = registry.render()
    assert 'nri_warmup_warmup_seconds_bucket{le="0.001"} 1' in text
    assert 'nri_warmup_warmup_seconds_bucket{le="0.5"} 2' in text
    assert 'nri_warmup_warmup_seconds_bucket{le="+Inf"} 3' in text
    assert "nri_warmup_warmup_seconds_count 3" in text


def test_a_value_outside_a_bounded_label_is_other() -> None:
    registry = Registry()
    registry.inc("nri_warmup_events_total", kind="evil\n} 1", decoded="true")
    assert registry.value("nri_warmup_events_total", kind="other", decoded="true") == 1


def test_an_undeclared_metric_or_label_is_an_error() -> None:
    registry = Registry()
    with pytest.raises(KeyError):
        registry.inc("nri_warmup_nothing_total")
    with pytest.raises(KeyError):
        registry.inc("nri_warmup_complaints_total", pod="x")
    with pytest.raises(KeyError):
        registry.inc("nri_warmup_events_total", kind="create-container")


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MAX_SERIES", 3)
    registry = Registry()
    for number in range(10):
        registry.inc("nri_warmup_reasons_total", kind="k", code=f"c{number}")
    assert registry.render().count("nri_warmup_reasons_total{") == 4
    assert registry.value("nri_warmup_reasons_total", kind="other", code="other") == 7


def test_label_values_are_escaped() -> None:
    registry = Registry()
    registry.set("nri_warmup_runtime_info", 1, name='a"b\\c\nd', version="1")
    (sample,) = next(
        iter(text_string_to_metric_families(registry.render().split("# HELP nri_warmup_disconnects")[0]))
    ).samples
    assert sample.labels["name"] == 'a"b\\c\nd'


def test_an_absent_gauge_is_not_zero() -> None:
    registry = Registry()
    assert "nri_warmup_jobs_running" not in registry.render()
    assert "nri_warmup_missed_total 0" in registry.render()
