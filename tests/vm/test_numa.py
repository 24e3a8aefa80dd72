"""A container bound to a NUMA node has its model there: the worker is in its cgroup, whose cpuset holds for it too."""

from __future__ import annotations

import pytest

from tests.e2e.bed import MIB, Bed
from tests.vm import guest
from tests.vm.guest import LABELS, model_config

MODEL = "/models/model.bin"
SIZE = 64 * MIB


@pytest.mark.parametrize("node", [pytest.param(1, marks=pytest.mark.ci_guest), 0])
def test_model_lands_on_the_node_of_the_containers_cpuset(bed: Bed, node: int) -> None:
    model = bed.model(size=SIZE)
    plugin = bed.plugin(model_config())
    container = bed.container(
        bed.pod(labels=LABELS),
        *("wait", "/sync/go", "touch", MODEL, "sleep", "1000"),
        cpuset_mems=str(node),
        volumes=[bed.volume(model.parent)],
    )
    entry = plugin.outcome(container.id)
    pid = bed.cri.pid(container)
    own = guest.cgroup_of(pid)
    assert (own / "cpuset.mems.effective").read_text().strip() == str(node)
    assert entry["state"] == "done", entry
    on = guest.numa_stat(own)
    assert on[node] >= 0.99 * SIZE and sum(on.values()) - on[node] < 1 * MIB, on
    bed.go()
    bed.cri.wait_line(container, "touch")
    assert guest.numa_pages(pid, "model.bin") == {node: SIZE // 4096}
