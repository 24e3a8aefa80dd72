"""``gate: hook`` below containerd on cgroup v2, with both OCI runtimes."""

from __future__ import annotations

import pytest

from tests.e2e.bed import MIB, Bed
from tests.lab.store import ROOT
from tests.vm import guest
from tests.vm.guest import LABELS, model_config

MODEL = "/models/model.bin"


@pytest.mark.parametrize(
    "handler",
    [pytest.param("", marks=pytest.mark.ci_guest, id="runc"), pytest.param("crun", marks=pytest.mark.ci_guest)],
)
def test_the_entrypoints_first_act_finds_every_page(bed: Bed, handler: str) -> None:
    model = bed.model(size=32 * MIB)
    plugin = bed.plugin(model_config(gate="hook"), arguments=[f"--hook={ROOT / 'hooks' / 'nri-warmup-hook'}"])
    pod = bed.pod(labels=LABELS, handler=handler)
    container = bed.container(
        pod, "resident", MODEL, "touch", MODEL, "sleep", "1000", volumes=[bed.volume(model.parent)]
    )
    assert bed.cri.wait_line(container, "resident") == f"resident {MODEL} 8192 8192"
    assert bed.cri.wait_line(container, "touch").split()[2] == "0"
    entry = plugin.outcome(container.id)
    assert (entry["state"], entry["gate"]) == ("done", "hook"), entry
    assert entry["outcome"]["read_bytes"] == 32 * MIB and entry["outcome"]["charged"]
    assert bed.share_owned(model, container) >= 0.99
    assert plugin.metrics()['nri_warmup_gates_total{result="held"}'] == 1
    assert guest.keys(guest.cgroup_of(bed.cri.pid(container)) / "memory.stat")["file"] >= 32 * MIB
