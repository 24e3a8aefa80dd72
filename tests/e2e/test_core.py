"""What the plugin is for, on every runtime: a pod that a profile picks has its model warm and charged to itself."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import BUSYBOX, MIB, PROBE, Bed
from tests.lab import pages
from tests.lab.cri import Volume
from tests.lab.plugin import PluginProcess
from tests.lab.store import SLOTS

LABELS = {"app": "llm"}
CONFIG: dict[str, Any] = {
    "profiles": {
        "model": {"files": ["/models/**"], "reserve": "8Mi"},
        "weights": {"files": ["/models/weights.bin"], "reserve": "8Mi"},
        "tokens": {"files": ["/models/tokens.bin"], "reserve": "8Mi"},
    },
    "selectors": [{"profile": "model", "matchLabels": LABELS}],
}
OWNED = 0.99
UNIQUE = "|".join(
    (
        "[0-9a-f]{64}",  # ids
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",  # uids
        r"(?<=/proc/)\d+",  # the sandbox's process in the paths of its namespaces
        r"\d{4}-\d\d-\d\dT[0-9:.]+Z",
    )
)
"""What two OCI specs of the same container differ in."""


def _warm(outcome: dict[str, Any]) -> None:
    """The whole outcome of a warm-up that went well."""
    assert outcome["state"] == "done", outcome
    assert outcome["outcome"]["coverage"] == 1.0
    assert outcome["outcome"]["charged"]


def test_a_waiting_entrypoint_finds_its_model_warm(bed: Bed) -> None:
    model = bed.model(size=32 * MIB)
    plugin = bed.plugin(CONFIG)
    pod = bed.pod(labels=LABELS)
    container = bed.container(
        pod,
        *("wait", "/sync/go", "resident", "/models/model.bin", "touch", "/models/model.bin", "sleep", "1000"),
        volumes=[bed.volume(model.parent)],
    )

    entry = plugin.outcome(container.id)
    witnessed = pages.resident_share(model)
    owned = bed.share_owned(model, container)
    bed.go()

    assert bed.cri.wait_line(container, "resident") == "resident /models/model.bin 8192 8192"
    touched = bed.cri.wait_line(container, "touch").split()
    assert touched[2] == "0", f"major faults of the server: {touched}"
    _warm(entry)
    assert entry["outcome"]["wanted_bytes"] == 32 * MIB
    assert entry["profile"] == "model" and not entry["late"]
    assert witnessed == 1.0
    assert owned >= OWNED
    assert entry["outcome"]["owned"] == pytest.approx(owned, abs=0.01)


def test_an_unlabelled_pod_is_untouched(bed: Bed) -> None:
    """The same container with no plugin, and with one whose selectors do not match: one OCI spec, and nothing read."""

    def spec_and_share() -> tuple[str, float]:
        pod = bed.pod(labels={"app": "web"})
        container = bed.container(pod, "sleep", "1000", volumes=[bed.volume(model.parent)])
        spec = json.dumps(bed.cri.spec(container), sort_keys=True, indent=1).replace(pod.name, "POD")
        share = pages.resident_share(model)
        bed.remove_pods()
        return re.sub(UNIQUE, "UNIQUE", spec), share

    model = bed.model()
    expected, _ = spec_and_share()
    plugin = bed.plugin(CONFIG)
    found, share = spec_and_share()

    assert found.splitlines() == expected.splitlines()
    assert share == 0.0
    assert plugin.status()["containers"] == []
    decoded = {name: count for name, count in plugin.metrics().items() if 'decoded="true"' in name}
    assert [name for name in decoded if "container" in name and decoded[name]] == []


def test_two_containers_of_one_pod_have_a_profile_each(bed: Bed) -> None:
    weights = bed.model("models/weights.bin", 8 * MIB)
    tokens = bed.model("models/tokens.bin", 4 * MIB)
    other = bed.model("models/other.bin", 4 * MIB)
    plugin = bed.plugin(CONFIG)
    pod = bed.pod(
        annotations={
            "profile.nri-warmup.dev/container.server": "weights",
            "profile.nri-warmup.dev/container.tokenizer": "tokens",
        }
    )
    volumes = [bed.volume(weights.parent)]
    server = bed.container(pod, "sleep", "1000", name="server", volumes=volumes)
    tokenizer = bed.container(pod, "sleep", "1000", name="tokenizer", volumes=volumes)
    sidecar = bed.container(pod, "sleep", "1000", name="sidecar", volumes=volumes)

    first, second = plugin.outcome(server.id), plugin.outcome(tokenizer.id)

    _warm(first)
    _warm(second)
    assert (first["profile"], second["profile"]) == ("weights", "tokens")
    assert pages.resident_share(weights) == pages.resident_share(tokens) == 1.0
    assert pages.resident_share(other) == 0.0
    assert bed.share_owned(weights, server) >= OWNED
    assert bed.share_owned(tokens, tokenizer) >= OWNED
    third = plugin.entry(sidecar.id)
    assert third is None or third["state"] == "skipped"


def test_two_pods_of_one_image_at_once(bed: Bed) -> None:
    """The model is in the image: one inode for both. It is read once, and both find it whole."""
    image, stored = bed.image_model(8 * MIB, with_probe=True)
    plugin = bed.plugin({**CONFIG, "selectors": [{**CONFIG["selectors"][0], "containers": ["server"]}]})
    commands = ["/probe", "wait", "/sync/go", "resident", "/models/model.bin", "sleep", "1000"]
    containers = [bed.create(bed.pod(labels=LABELS), *commands, image=image) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(bed.cri.start, containers))

    entries = [plugin.outcome(container.id) for container in containers]
    share = pages.resident_share(stored)
    bed.go()

    for container, entry in zip(containers, entries, strict=True):
        assert bed.cri.wait_line(container, "resident") == "resident /models/model.bin 2048 2048"
        assert entry["state"] == "done", entry
        assert entry["outcome"]["coverage"] == 1.0
    assert share == 1.0
    assert sum(entry["outcome"]["read_bytes"] for entry in entries) <= 8 * MIB


def test_a_path_that_only_the_container_has(bed: Bed) -> None:
    """The pattern names a place in the container; the host has nothing there, and another file at the source."""
    model = bed.model("volume/data/model.bin", 8 * MIB)
    target = "/srv/only-in-the-container/models"
    assert not Path(target).exists()
    config = {"profiles": {"deep": {"files": [f"{target}/**/*.bin"]}}}
    plugin = bed.plugin(config)
    pod = bed.pod(annotations={"profile.nri-warmup.dev": "deep"})
    container = bed.container(pod, "sleep", "1000", volumes=[bed.volume(model.parents[1], target)])

    entry = plugin.outcome(container.id)

    _warm(entry)
    assert [found["path"] for found in entry["outcome"]["files"]] == [f"{target}/data/model.bin"]
    assert pages.resident_share(model) == 1.0
    assert bed.share_owned(model, container) >= OWNED


@pytest.mark.parametrize("bed", ["2.1", "2.4", "crio"], indirect=True)
def test_a_model_in_an_image_volume(bed: Bed) -> None:
    """containerd 1.7 has none."""
    image, stored = bed.image_model(8 * MIB, path="llm/model.bin")
    plugin = bed.plugin(CONFIG)
    pod = bed.pod(labels=LABELS)
    container = bed.container(
        pod,
        *("wait", "/sync/go", "resident", "/models/llm/model.bin", "sleep", "1000"),
        volumes=[Volume(target="/models", image=image)],
    )

    entry = plugin.outcome(container.id)
    share, owned = pages.resident_share(stored), bed.share_owned(stored, container)
    bed.go()

    _warm(entry)
    assert share == 1.0
    assert owned >= OWNED
    assert bed.cri.wait_line(container, "resident") == "resident /models/llm/model.bin 2048 2048"


def test_an_image_with_a_shell_and_a_read_only_root(bed: Bed) -> None:
    model = bed.model(size=8 * MIB)
    plugin = bed.plugin(CONFIG)
    pod = bed.pod(labels=LABELS)
    container = bed.container(
        pod,
        *("/bin/sh", "-c", "touch /written 2>/dev/null; echo root $?; sleep 1000"),
        image=BUSYBOX,
        readonly_root=True,
        volumes=[bed.volume(model.parent)],
    )

    entry = plugin.outcome(container.id)

    _warm(entry)
    assert bed.cri.wait_line(container, "root") != "root 0"
    assert pages.resident_share(model) == 1.0
    assert bed.share_owned(model, container) >= OWNED


@pytest.mark.parametrize("bed", SLOTS, indirect=True)
def test_a_pod_with_a_user_namespace(bed: Bed) -> None:
    model = bed.model(size=8 * MIB)
    plugin = bed.plugin(CONFIG)
    pod = bed.pod(labels=LABELS, handler="userns", user_namespace=(1_000_000, 65_536))
    container = bed.container(
        pod,
        *("wait", "/sync/go", "touch", "/models/model.bin", "sleep", "1000"),
        volumes=[bed.volume(model.parent)],
    )

    entry = plugin.outcome(container.id)
    share, owned = pages.resident_share(model), bed.share_owned(model, container)
    bed.go()

    assert Path(f"/proc/{bed.cri.pid(container)}/uid_map").read_text().split() == ["0", "1000000", "65536"]
    assert bed.cri.wait_line(container, "touch").split()[2] == "0"
    assert share == 1.0
    assert owned >= OWNED
    assert entry["state"] == "done" and entry["outcome"]["charged"], entry
    assert entry["outcome"]["read_bytes"] == 8 * MIB
    # mincore tells only a file's owner the truth, and says "all" to others: then no coverage is claimed.
    assert entry["outcome"]["coverage"] in (1.0, None)


def test_a_container_that_started_while_the_plugin_was_away(bed: Bed) -> None:
    model = bed.model(size=8 * MIB)
    pod = bed.pod(labels=LABELS)
    container = bed.container(pod, "sleep", "1000", volumes=[bed.volume(model.parent)])
    assert pages.resident_share(model) == 0.0

    plugin = bed.plugin(CONFIG)
    entry = plugin.outcome(container.id)

    _warm(entry)
    assert entry["late"]
    assert pages.resident_share(model) == 1.0
    assert bed.share_owned(model, container) >= OWNED
    assert plugin.metrics()["nri_warmup_missed_total"] == 1


def test_the_plugin_says_whom_it_is_registered_with(bed: Bed) -> None:
    plugin: PluginProcess = bed.plugin(CONFIG)
    connection = plugin.status()["connection"]

    assert connection["state"] == "registered"
    assert bed.runtime.version.split("+")[0].split("~")[0] in connection["runtime_version"]
    assert connection["disconnects"] == 0
    assert PROBE in bed.cri.images()
