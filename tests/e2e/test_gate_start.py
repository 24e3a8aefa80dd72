"""``gate: start``: StartContainer itself waits, briefly, and never for more than the host's share of wall time."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.bed import MIB, Bed

LABELS = {"app": "llm"}
MODEL = "/models/model.bin"


def config(**profile: Any) -> dict[str, Any]:
    return {
        "profiles": {"model": {"files": ["/models/**"], "gate": "start", "reserve": "4Mi", **profile}},
        "selectors": [{"profile": "model", "matchLabels": LABELS}],
    }


def test_first_act_finds_every_page(bed: Bed) -> None:
    model = bed.model(size=8 * MIB)
    plugin = bed.plugin(config(hold="900ms"))
    container = bed.container(
        bed.pod(labels=LABELS), "resident", MODEL, "sleep", "1000", volumes=[bed.volume(model.parent)]
    )
    assert bed.cri.wait_line(container, "resident") == f"resident {MODEL} 2048 2048"
    entry = plugin.outcome(container.id)
    assert (entry["state"], entry["gate"]) == ("done", "start")
    assert 0 < plugin.metrics()["nri_warmup_start_hold_seconds_total"] < 0.9


def test_hold_is_short_unless_the_profile_says_otherwise(faulty: Bed) -> None:
    slow = faulty.slow(24 * MIB, 12 * MIB)
    plugin = faulty.plugin(config())
    container = faulty.create(
        faulty.pod(labels=LABELS), "resident", MODEL, "sleep", "1000", volumes=[faulty.volume(slow.directory)]
    )
    began = time.monotonic()
    faulty.cri.start(container)
    assert time.monotonic() - began < 1.5
    resident, total = map(int, faulty.cri.wait_line(container, "resident").split()[2:])
    assert 0 < resident < total
    assert 0.25 < plugin.metrics()["nri_warmup_start_hold_seconds_total"] < 0.8
    assert plugin.outcome(container.id)["state"] == "done"


def test_budget_of_the_host_is_kept(faulty: Bed) -> None:
    """Pods that each want to hold a second: what is left of 5 % of wall time is spent, and the next is not held."""
    slow = faulty.slow(64 * MIB, 4 * MIB)
    began = time.monotonic()
    plugin = faulty.plugin(config(hold="900ms"))
    gates = []
    for number in range(6):
        container = faulty.container(
            faulty.pod(labels=LABELS), "sleep", "1000", name=f"c{number}", volumes=[faulty.volume(slow.directory)]
        )
        entry = plugin.entry(container.id)
        assert entry is not None
        gates.append(entry["gate"])
    held = plugin.metrics()["nri_warmup_start_hold_seconds_total"]
    assert gates[:3] == ["start"] * 3 and gates[-1] == "none", gates
    assert held <= 3.0 + 0.05 * (time.monotonic() - began) + 0.3
    assert "start-budget" in {reason["code"] for reason in entry["reasons"]}
