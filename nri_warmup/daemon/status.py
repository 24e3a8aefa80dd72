"""The daemon's state as plain JSON values, for ``nri-warmup status`` and whoever asks the control socket."""

from __future__ import annotations

import time
from typing import Any

import nri_warmup
from nri_warmup.daemon.pipeline import Pipeline
from nri_warmup.daemon.registry import Entry
from nri_warmup.daemon.warmup import Warmer
from nri_warmup.model.outcome import Outcome
from nri_warmup.nri.client import ConnectionStatus

_HISTORY_SHOWN = 50
_FILES_SHOWN = 20


def render_status(
    pipeline: Pipeline, connection: ConnectionStatus, warmer: Warmer, config_error: str = ""
) -> dict[str, Any]:
    config = pipeline.config
    running, queued = warmer.load()
    return {
        "version": nri_warmup.__version__,
        "connection": {
            "state": connection.state,
            "runtime": connection.runtime.name,
            "runtime_version": connection.runtime.version,
            "nri_version": ".".join(map(str, connection.runtime.nri_version)),
            "request_timeout_s": connection.runtime.request_timeout_s,
            "disconnects": connection.disconnects,
            "last_error": connection.last_error,
        },
        "config": {
            "source": config.source,
            "profiles": [p.name for p in config.profiles],
            "selectors": len(config.selectors),
            "error": config_error,
        },
        "jobs": {"running": running, "queued": queued},
        "containers": [render_entry(e) for e in pipeline.registry],
        "recent": [render_entry(e) for e in list(pipeline.registry.history)[-_HISTORY_SHOWN:]],
    }


def render_entry(entry: Entry) -> dict[str, Any]:
    began = entry.began_s
    return {
        "id": entry.container.id,
        "namespace": entry.pod.namespace,
        "pod": entry.pod.name,
        "container": entry.container.name,
        "profile": entry.plan.profile,
        "gate": entry.plan.gate.value,
        "state": entry.state.value if entry.state else "planned",
        "late": entry.late,
        "program": entry.program,
        "running_s": round(time.monotonic() - began, 3) if began is not None and entry.outcome is None else None,
        "progress": {
            "wanted_bytes": entry.progress.wanted_bytes,
            "resident_bytes": entry.progress.resident_bytes,
            "read_bytes": entry.progress.read_bytes,
            "files": entry.progress.files,
        },
        "outcome": render_outcome(entry.outcome) if entry.outcome else None,
        "reasons": [{"kind": r.kind.value, "code": r.code, "text": r.text} for r in entry.plan.reasons],
    }


def render_outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "state": outcome.state.value,
        "reason": outcome.reason,
        "seconds": round(outcome.seconds, 4),
        "wanted_bytes": outcome.wanted_bytes,
        "resident_bytes": outcome.resident_bytes,
        "read_bytes": outcome.read_bytes,
        "owned_bytes": outcome.owned_bytes,
        "large_folio_bytes": outcome.large_folio_bytes,
        "touched_bytes": outcome.touched_bytes,
        "budget_bytes": outcome.budget_bytes,
        "coverage": outcome.coverage,
        "owned": outcome.owned,
        "charged": outcome.charged,
        "files_total": outcome.files_total,
        "files": [
            {
                "path": f.path,
                "state": f.state.value,
                "wanted_bytes": f.wanted_bytes,
                "resident_bytes": f.resident_bytes,
                "read_bytes": f.read_bytes,
                "detail": f.detail,
            }
            for f in outcome.files[:_FILES_SHOWN]
        ],
    }
