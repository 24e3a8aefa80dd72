"""No trace on the LRU lists: after the server's own first access its model is as inactive as without a warm-up.

kubelet's working set is usage less *inactive* file pages: what turns active counts against the pod and the node. It may
be more inactive: the multi-generational LRU puts what is read in by a fault of a mapping into its youngest generation,
and what was there before the fault stays where it was.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.bed import BUSYBOX, MIB, Bed
from tests.vm import guest
from tests.vm.guest import LABELS, model_config

MODEL = "/models/model.bin"
SIZE = 64 * MIB
READ = (
    f"while [ ! -e /sync/go ]; do sleep 0.1; done; dd if={MODEL} of=/dev/null bs=1M 2>/dev/null; echo read; sleep 1000"
)
SERVERS: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "read": (["/bin/sh", "-c", READ], {"image": BUSYBOX}, "read"),
    "map": (["wait", "/sync/go", "touch", MODEL, "sleep", "1000"], {}, "touch"),
}


def active_after_its_own_access(bed: Bed, server: str, profile: dict[str, Any] | None) -> int:
    """Bytes on the active lists of the container's cgroup; ``profile`` None: no plugin at all."""
    model = bed.model(f"{server}-{bool(profile)}/model.bin", SIZE)
    plugin = bed.plugin(model_config(**profile)) if profile is not None else None
    command, options, line = SERVERS[server]
    container = bed.container(bed.pod(labels=LABELS), *command, volumes=[bed.volume(model.parent)], **options)
    own = guest.cgroup_of(bed.cri.pid(container))
    if plugin is not None:
        assert plugin.outcome(container.id)["state"] == "done"
    bed.go()
    bed.cri.wait_line(container, line)
    stat = guest.keys(own / "memory.stat")
    assert stat["file"] >= SIZE
    bed.remove_pods()
    (bed.sync / "go").unlink()
    if plugin is not None:
        plugin.stop()
    return stat["active_file"]


@pytest.mark.parametrize(
    ("generations", "server"),
    [
        pytest.param(False, "read", id="classic-read", marks=pytest.mark.ci_guest),
        pytest.param(False, "map", id="classic-map"),
        pytest.param(True, "read", id="mglru-read"),
        pytest.param(True, "map", id="mglru-map"),
    ],
)
def test_no_trace_after_the_servers_own_access(bed: Bed, generations: bool, server: str) -> None:
    with guest.multigenerational_lru(generations):
        without = active_after_its_own_access(bed, server, None)
        warmed = active_after_its_own_access(bed, server, {})
    assert warmed - without <= 2 * MIB, f"active: {warmed >> 20} MiB warmed, {without >> 20} MiB without"


@pytest.mark.ci_guest
def test_residency_active_is_seen_as_active(bed: Bed) -> None:
    """The opposite, asked for: it also shows that the measure above can tell the two apart."""
    with guest.multigenerational_lru(False):
        assert active_after_its_own_access(bed, "read", {"residency": "active"}) > 0.9 * SIZE
