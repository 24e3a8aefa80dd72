"""Each folder of ``plans/`` is a case: config.yaml and event.json (pod, container, node) give plan.json and plan.txt.

NRI_WARMUP_UPDATE_GOLDEN=1 writes the two anew; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.daemon.configfile import parse_config
from nri_warmup.model.lifecycle import Container, Mount, Pod, Runtime, pairs
from nri_warmup.model.node import NodeState
from nri_warmup.policy.decide import decide
from nri_warmup.policy.render import render_plan_json, render_plan_text

CASES = sorted(path for path in (Path(__file__).parent / "plans").iterdir() if path.is_dir())
UPDATE = os.environ.get("NRI_WARMUP_UPDATE_GOLDEN") == "1"
INPUT = {"config.yaml", "event.json"}
OUTPUT = {"plan.json", "plan.txt"}


def read_event(path: Path) -> tuple[Pod, Container, NodeState, Runtime]:
    value: dict[str, Any] = json.loads(path.read_text())
    pod, container = dict(value["pod"]), dict(value["container"])
    for holder in (pod, container):
        for key in ("labels", "annotations"):
            holder[key] = pairs(holder.get(key, {}))
    container["mounts"] = tuple(Mount(**mount) for mount in container.get("mounts", []))
    return (
        Pod(id="pod0", **pod),
        Container(id="c0ffee", pod_id="pod0", **container),
        NodeState(**value.get("node", {})),
        Runtime(**value.get("runtime", {})),
    )


def rendered(case: Path) -> dict[str, str]:
    config = parse_config((case / "config.yaml").read_text(), source="config.yaml")
    pod, container, node, runtime = read_event(case / "event.json")
    plan = decide(pod, container, config, runtime, node, explain=True)
    return {
        "plan.json": json.dumps(render_plan_json(plan), indent=2, ensure_ascii=False) + "\n",
        "plan.txt": render_plan_text(plan),
    }


def test_there_are_cases() -> None:
    assert len(CASES) >= 12


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_plan(case: Path) -> None:
    found = rendered(case)
    if UPDATE:
        for name, text in found.items():
            (case / name).write_text(text)
    assert {path.name for path in case.iterdir()} == INPUT | OUTPUT
    assert {name: (case / name).read_text() for name in OUTPUT} == found


def test_every_reason_is_shown_by_a_case() -> None:
    """A new code wants a case here: what an operator reads of it is part of it."""
    from tests.unit.test_configuration_docs import codes_in_policy

    shown = {
        (reason["kind"], reason["code"])
        for case in CASES
        for reason in json.loads((case / "plan.json").read_text())["reasons"]
    }
    assert codes_in_policy() - shown == set()
