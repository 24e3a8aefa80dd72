"""Static pods of a real kubelet: warmed, charged to themselves, and seen by the kubelet as if they had not been."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.e2e.bed import BUSYBOX, MIB, PROBE
from tests.lab import pages
from tests.lab.cri import until
from tests.vm import guest
from tests.vm.node.conftest import Node

pytestmark = pytest.mark.ci_guest

SIZE = 128 * MIB
ANNOTATION = {"profile.nri-warmup.dev/container.server": "model"}
GUARANTEED = {name: {"cpu": "1", "memory": "512Mi"} for name in ("requests", "limits")}
READ = (
    "while [ ! -e /sync/go ]; do sleep 0.1; done; dd if=/models/model.bin of=/dev/null bs=1M 2>/dev/null; "
    "touch /sync/read; sleep 10000"
)


def model(node: Node, name: str) -> Path:
    return pages.make_model(node.directory / f"models-{name}" / "model.bin", SIZE)


def test_a_static_pod_is_warmed_and_charged_to_itself(node: Node) -> None:
    path = model(node, "warm")
    node.run_pod(
        "warm", path.parent, ["/probe", "sleep", "10000"], image=PROBE, resources=GUARANTEED, annotations=ANNOTATION
    )
    server = node.running("warm")
    entry = node.plugin.outcome(server.id, 120)
    assert entry["state"] == "done" and entry["outcome"]["coverage"] == 1.0, entry
    assert pages.resident_share(path) == 1.0
    assert pages.owners(path) == {server.cgroup.stat().st_ino: SIZE // pages.PAGE}
    pod = server.cgroup.parent
    assert pod.name.startswith("kubepods-pod") and pod.parent.name == "kubepods.slice"
    assert guest.members(pod) == [] and guest.keys(server.cgroup / "memory.events")["oom_kill"] == 0
    assert (server.cgroup / "memory.max").read_text().strip() == str(512 * MIB)
    # The CPU manager's choice is untouched: one CPU of its own, never the reserved one.
    cpus = (server.cgroup / "cpuset.cpus.effective").read_text().strip()
    assert cpus.isdigit() and cpus != "0"
    node.remove_pod("warm")
    until("the end of the pod's slice", lambda: not pod.exists(), 90, 0.5)


def test_memory_qos_is_kept(node: Node) -> None:
    """memory.high of a burstable pod, as the kubelet sets it, is not run into."""
    path = model(node, "burst")
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "160Mi"}}
    node.run_pod(
        "burst", path.parent, ["/probe", "sleep", "10000"], image=PROBE, resources=resources, annotations=ANNOTATION
    )
    server = node.running("burst")
    entry = node.plugin.outcome(server.id, 120)
    high = int((server.cgroup / "memory.high").read_text())
    assert 140 * MIB < high < 160 * MIB
    assert entry["state"] == "done", entry
    assert guest.keys(server.cgroup / "memory.events")["high"] == 0
    assert pages.owners(path) == {server.cgroup.stat().st_ino: SIZE // pages.PAGE}
    node.remove_pod("burst")


def test_the_working_set_that_kubelet_sees_stays_as_without_a_warm_up(node: Node) -> None:
    with guest.multigenerational_lru(False):
        sets = {}
        for name, annotations in (("plain", {}), ("warmed", ANNOTATION)):
            path = model(node, name)
            command = ["/bin/sh", "-c", READ]
            sync = node.run_pod(
                name, path.parent, command, image=BUSYBOX, resources=GUARANTEED, annotations=annotations
            )
            server = node.running(name)
            if annotations:
                assert node.plugin.outcome(server.id, 120)["state"] == "done"
            else:
                assert pages.resident_share(path) == 0.0 and node.plugin.entry(server.id) is None
            (sync / "go").touch()
            until("the server's read", (sync / "read").exists, 60)
            sets[name] = working_set_after(node, name, (sync / "read").stat().st_mtime)
            assert guest.keys(server.cgroup / "memory.stat")["file"] >= SIZE
            node.remove_pod(name)
    assert sets["plain"] < 32 * MIB, sets
    assert abs(sets["warmed"] - sets["plain"]) < 8 * MIB, sets


def working_set_after(node: Node, pod: str, moment: float) -> int:
    """kubelet's figure, measured after that moment."""

    def look() -> int | None:
        memory = node.container_memory(pod)
        if not memory or memory.get("usageBytes", 0) < SIZE:
            return None
        taken = datetime.datetime.fromisoformat(memory["time"]).timestamp()
        return int(memory["workingSetBytes"]) if taken > moment + 1 else None

    return int(until(f"kubelet's figures of {pod}", look, 90, 1))
