"""The spine's claims on cgroup v2, by the kernel's own files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import MIB, Bed
from tests.lab import pages
from tests.lab.cri import until
from tests.lab.leftovers import slice_directory
from tests.vm import guest
from tests.vm.guest import LABELS, model_config

MODEL = "/models/model.bin"


def done(entry: dict[str, Any]) -> None:
    assert entry["state"] == "done", entry
    assert entry["outcome"]["coverage"] == 1.0 and entry["outcome"]["charged"]


@pytest.mark.ci_guest
def test_model_is_resident_and_charged_to_its_own_container(bed: Bed) -> None:
    model = bed.model(size=64 * MIB)
    plugin = bed.plugin(model_config())
    container = bed.create(
        bed.pod(labels=LABELS),
        *("wait", "/sync/go", "touch", MODEL, "sleep", "1000"),
        volumes=[bed.volume(model.parent)],
    )
    bed.cri.start(container)
    entry = plugin.outcome(container.id)
    own = guest.cgroup_of(bed.cri.pid(container))

    done(entry)
    assert pages.resident_share(model) == 1.0
    assert pages.owners(model) == {own.stat().st_ino: 16384}
    assert guest.keys(own / "memory.stat")["file"] >= 64 * MIB
    assert entry["outcome"]["owned"] >= 0.99
    for other in own.parent.iterdir():  # the pause container's
        if other.is_dir() and other != own:
            assert guest.keys(other / "memory.stat")["file"] < 4 * MIB
    bed.go()
    assert bed.cri.wait_line(container, "touch").split()[2] == "0", "major faults of the server"


@pytest.mark.ci_guest
def test_an_unlabelled_pod_is_untouched(bed: Bed) -> None:
    model = bed.model(size=16 * MIB)
    plugin = bed.plugin(model_config())
    container = bed.container(
        bed.pod(labels={"app": "web"}), "say", "up", "sleep", "1000", volumes=[bed.volume(model.parent)]
    )
    bed.cri.wait_line(container, "say up")
    assert pages.resident_share(model) == 0.0
    assert plugin.status()["containers"] == []
    assert guest.keys(guest.cgroup_of(bed.cri.pid(container)) / "memory.stat")["file"] < 4 * MIB


@pytest.mark.ci_guest
def test_the_worker_joins_the_leaf_and_nothing_else(bed: Bed) -> None:
    """A pod's cgroup is an internal node: processes may be in its leaves only."""
    slow = bed.slow(32 * MIB, 8 * MIB)
    plugin = bed.plugin(model_config())
    container = bed.container(bed.pod(labels=LABELS), "sleep", "1000", volumes=[bed.volume(slow.directory)])
    init = bed.cri.pid(container)
    leaf = guest.cgroup_of(init)
    pod = leaf.parent

    def guests_of_the_leaf() -> list[int]:
        return [pid for pid in guest.members(leaf) if pid != init]

    [worker] = until("the worker in the leaf", guests_of_the_leaf, 30)
    helpers = {helper.pid for helper in plugin.note_helpers()}
    assert worker in helpers
    assert {guest.cgroup_of(pid) for pid in helpers - {worker}} == {guest.cgroup_of(plugin.pid)}
    assert guest.members(pod) == [] and "memory" in guest.controllers(pod)
    done(plugin.outcome(container.id))
    assert guests_of_the_leaf() == []
    assert pages.owners(slow.file) == {leaf.stat().st_ino: 8192}
    if guest.DRIVER == "systemd":
        assert leaf.name == f"cri-containerd-{container.id}.scope"
        assert pod.name.endswith(".slice") and pod.parent.name.endswith(".slice")
    else:
        assert leaf.name == container.id


@pytest.mark.ci_guest
def test_the_containers_limit_is_kept(bed: Bed) -> None:
    model = bed.model(size=96 * MIB)
    plugin = bed.plugin(model_config())
    container = bed.container(
        bed.pod(labels=LABELS), "sleep", "1000", memory_bytes=48 * MIB, volumes=[bed.volume(model.parent)]
    )
    entry = plugin.outcome(container.id)
    own = guest.cgroup_of(bed.cri.pid(container))

    assert (own / "memory.max").read_text().strip() == str(48 * MIB)
    assert entry["state"] == "over-budget", entry
    assert 20 * MIB < entry["outcome"]["read_bytes"] <= entry["outcome"]["budget_bytes"] < 48 * MIB
    assert str(own) in entry["outcome"]["reason"]
    events = guest.keys(own / "memory.events")
    assert (events["oom"], events["oom_kill"], events["max"]) == (0, 0, 0)
    assert guest.keys(own / "memory.stat")["workingset_refault_file"] < 64
    assert bed.cri.running(container)


@pytest.mark.ci_guest
def test_memory_high_of_the_pod_bounds_the_warm_up(bed: Bed) -> None:
    """Past memory.high the kernel throttles whoever allocates, the container's own processes among them."""
    model = bed.model(size=96 * MIB)
    plugin = bed.plugin(model_config())
    pod = bed.pod(labels=LABELS)
    container = bed.create(pod, "sleep", "1000", volumes=[bed.volume(model.parent)])
    directory = guest.CGROUPS / slice_directory(pod.config.linux.cgroup_parent).strip("/")
    (directory / "memory.high").write_text(str(64 * MIB))
    bed.cri.start(container)
    entry = plugin.outcome(container.id)
    assert entry["state"] == "over-budget" and "high" in entry["outcome"]["reason"], entry
    assert 24 * MIB < entry["outcome"]["read_bytes"] < 64 * MIB
    assert guest.keys(directory / "memory.events")["high"] == 0


@pytest.mark.ci_guest
def test_gone_within_a_second_of_the_stop(bed: Bed) -> None:
    slow = bed.slow(64 * MIB, 2 * MIB)
    plugin = bed.plugin(model_config())
    pod = bed.pod(labels=LABELS)
    container = bed.container(pod, "sleep", "1000", volumes=[bed.volume(slow.directory)])
    leaf = guest.cgroup_of(bed.cri.pid(container))
    until("the worker in the leaf", lambda: len(guest.members(leaf)) > 1, 30)
    bed.cri.stop(container)
    began = time.monotonic()
    entry = plugin.outcome(container.id)
    assert time.monotonic() - began < 5
    assert entry["state"] in ("cancelled", "container-gone"), entry
    bed.remove_pods()
    assert not leaf.exists() and not leaf.parent.exists()


@pytest.mark.parametrize("size_mib", [16])
def test_the_kernels_folios_are_what_is_reported(bed: Bed, size_mib: int) -> None:
    """ext4 has 4 KiB folios only before Linux 6.16; whichever it is, all is read and none is counted wrongly."""
    model = bed.model(size=size_mib * MIB)
    plugin = bed.plugin(model_config())
    container = bed.container(bed.pod(labels=LABELS), "sleep", "1000", volumes=[bed.volume(model.parent)])
    entry = plugin.outcome(container.id)
    done(entry)
    seen = guest.large_share(model)
    assert entry["outcome"]["large_folio_bytes"] / (size_mib * MIB) == pytest.approx(seen, abs=0.01)
    version = tuple(map(int, Path("/proc/sys/kernel/osrelease").read_text().split("-")[0].split("+")[0].split(".")[:2]))
    assert (seen > 0.9) == (version >= (6, 16))
