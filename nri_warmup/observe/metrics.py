"""The one table of metrics, and a small registry that renders it in the Prometheus text format (version 0.0.4).

A metric that is not in TABLE cannot be counted, a label value outside its declared set becomes ``other``: the number of
series is bounded whatever a tenant writes. Names end in their base unit, counters in ``_total``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nri_warmup.model.lifecycle import EventKind
from nri_warmup.model.outcome import OutcomeState
from nri_warmup.model.profile import Gate

_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_REPLY_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
_ANY: frozenset[str] | None = None
"""A label whose values come from the operator or from us, never from a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row: ``labels`` maps a label to its allowed values, or to None where operator or build give them."""

    name: str
    kind: str
    help: str
    labels: tuple[tuple[str, frozenset[str] | None], ...] = ()
    buckets: tuple[float, ...] = ()


_KINDS = frozenset(kind.value for kind in EventKind)
_STATES = frozenset(state.value for state in OutcomeState)
_GATES = frozenset(gate.value for gate in Gate)
_YES_NO = frozenset({"true", "false"})

TABLE: tuple[Metric, ...] = (
    Metric(
        name="nri_warmup_build_info",
        kind="gauge",
        help="Always 1; version as label.",
        labels=(("version", _ANY),),
    ),
    Metric(name="nri_warmup_connected", kind="gauge", help="1 while registered with the container runtime."),
    Metric(
        name="nri_warmup_runtime_info",
        kind="gauge",
        help="Always 1 while registered; name and version of the container runtime.",
        labels=(("name", _ANY), ("version", _ANY)),
    ),
    Metric(name="nri_warmup_disconnects_total", kind="counter", help="Connections to the runtime that were lost."),
    Metric(
        name="nri_warmup_events_total",
        kind="counter",
        help="Events heard from the runtime; decoded=false ones could not concern any profile.",
        labels=(("kind", _KINDS), ("decoded", _YES_NO)),
    ),
    Metric(
        name="nri_warmup_handler_errors_total",
        kind="counter",
        help="Events answered with nothing because our own code failed.",
        labels=(("kind", _KINDS),),
    ),
    Metric(
        name="nri_warmup_create_reply_seconds",
        kind="histogram",
        help="Time to decide on one CreateContainer event.",
        buckets=_REPLY_SECONDS,
    ),
    Metric(
        name="nri_warmup_plans_total",
        kind="counter",
        help="Decisions, by profile; an empty profile is a container for which nothing is done.",
        labels=(("profile", _ANY), ("gate", _GATES)),
    ),
    Metric(
        name="nri_warmup_reasons_total",
        kind="counter",
        help="Reasons given in plans, by kind and code.",
        labels=(("kind", _ANY), ("code", _ANY)),
    ),
    Metric(name="nri_warmup_complaints_total", kind="counter", help="Annotations that could not be understood."),
    Metric(
        name="nri_warmup_warmups_total",
        kind="counter",
        help="Warm-ups ended, by outcome; late=true ones began after the container had started without us.",
        labels=(("outcome", _STATES), ("profile", _ANY), ("late", _YES_NO)),
    ),
    Metric(
        name="nri_warmup_warmup_seconds",
        kind="histogram",
        help="Length of warm-ups, from the start of the container to the end of the worker.",
        buckets=_SECONDS,
    ),
    Metric(name="nri_warmup_wanted_bytes_total", kind="counter", help="Bytes that warm-ups wanted resident."),
    Metric(name="nri_warmup_read_bytes_total", kind="counter", help="Bytes that warm-ups brought into the page cache."),
    Metric(
        name="nri_warmup_owned_bytes_total",
        kind="counter",
        help="Of the bytes read, those charged to the container's own memory cgroup.",
    ),
    Metric(name="nri_warmup_config_stale", kind="gauge", help="1 while a changed configuration is refused."),
    Metric(name="nri_warmup_workers_stuck", kind="gauge", help="Workers that wait inside the kernel and do not die."),
    Metric(name="nri_warmup_jobs_running", kind="gauge", help="Workers reading now."),
    Metric(name="nri_warmup_jobs_queued", kind="gauge", help="Warm-ups waiting for a slot."),
    Metric(name="nri_warmup_containers_tracked", kind="gauge", help="Containers with a plan."),
    Metric(
        name="nri_warmup_missed_total",
        kind="counter",
        help="Containers that started while the plugin was away, found at Synchronize.",
    ),
    Metric(
        name="nri_warmup_zygote_restarts_total", kind="counter", help="Zygotes of the injector that had to be replaced."
    ),
    Metric(
        name="nri_warmup_config_reloads_total",
        kind="counter",
        help="Readings of a changed configuration file.",
        labels=(("result", frozenset({"ok", "failed"})),),
    ),
    Metric(name="nri_warmup_gates_total", kind="counter", help="OCI hooks answered.", labels=(("result", _ANY),)),
    Metric(
        name="nri_warmup_programs_total",
        kind="counter",
        help="Warm-up programs of the operator's that were run in containers, by how they ended.",
        labels=(("result", frozenset({"ok", "failed", "timeout"})),),
    ),
    Metric(
        name="nri_warmup_start_hold_seconds_total",
        kind="counter",
        help="Time that gate start held StartContainer, and with it the runtime: a bounded share of wall time.",
    ),
    Metric(
        name="nri_warmup_gate_hold_seconds",
        kind="histogram",
        help="Time that an OCI hook held an entrypoint.",
        buckets=_SECONDS,
    ),
)
_BY_NAME = {metric.name: metric for metric in TABLE}
_MAX_SERIES = 2000
"""Per metric; what comes after is counted in the series whose labels are all ``other``."""

LabelValues = tuple[str, ...]


class Registry:
    """Values of the metrics of TABLE. Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._values: dict[str, dict[LabelValues, float]] = {m.name: {} for m in TABLE if m.kind != "histogram"}
        self._histograms: dict[str, list[float]] = {
            m.name: [0.0] * (len(m.buckets) + 2) for m in TABLE if m.kind == "histogram"
        }

    def inc(self, name: str, by: float = 1.0, /, **labels: str) -> None:
        """Add to a counter or gauge. KeyError for a name or label that TABLE does not have."""
        series = self._values[name]
        key = self._key(name, labels)
        series[key] = series.get(key, 0.0) + by

    def set(self, name: str, value: float, /, **labels: str) -> None:
        self._values[name][self._key(name, labels)] = value

    def clear(self, name: str) -> None:
        """Take all series of a metric away: absent is not zero."""
        self._values[name].clear()

    def observe(self, name: str, value: float) -> None:
        """Put one value into a histogram."""
        cells = self._histograms[name]
        for position, bound in enumerate(_BY_NAME[name].buckets):
            if value <= bound:
                cells[position] += 1
                break
        else:
            cells[-2] += 1
        cells[-1] += value

    def value(self, name: str, /, **labels: str) -> float | None:
        return self._values[name].get(self._key(name, labels))

    def _key(self, name: str, labels: dict[str, str]) -> LabelValues:
        declared = _BY_NAME[name].labels
        if len(labels) != len(declared):
            raise KeyError(f"{name} has labels {[label for label, _ in declared]}, got {sorted(labels)}")
        key = tuple(
            labels[label] if allowed is None or labels[label] in allowed else "other" for label, allowed in declared
        )
        if key not in self._values[name] and len(self._values[name]) >= _MAX_SERIES:
            return ("other",) * len(declared)
        return key

    def render(self) -> str:
        """The text format, ready to send: ``text/plain; version=0.0.4``."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        for metric in TABLE:
            if metric.kind == "histogram":
                body = list(_histogram_lines(metric, self._histograms[metric.name]))
            else:
                body = [
                    f"{metric.name}{_labels(metric, key)} {_number(value)}"
                    for key, value in sorted(self._values[metric.name].items())
                ]
                if not body and metric.kind == "counter" and not metric.labels:
                    body = [f"{metric.name} 0"]
            if body:
                yield f"# HELP {metric.name} {metric.help}"
                yield f"# TYPE {metric.name} {metric.kind}"
                yield from body


def _histogram_lines(metric: Metric, cells: list[float]) -> Iterator[str]:
    running = 0.0
    for bound, count in zip(metric.buckets, cells, strict=False):
        running += count
        yield f'{metric.name}_bucket{{le="{_number(bound)}"}} {_number(running)}'
    running += cells[-2]
    yield f'{metric.name}_bucket{{le="+Inf"}} {_number(running)}'
    yield f"{metric.name}_sum {_number(cells[-1])}"
    yield f"{metric.name}_count {_number(running)}"


def _labels(metric: Metric, key: LabelValues) -> str:
    if not key:
        return ""
    escaped = (
        f'{label}="{value}"'
        for (label, _), value in zip(
            metric.labels,
            (v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for v in key),
            strict=True,
        )
    )
    return "{" + ",".join(escaped) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
