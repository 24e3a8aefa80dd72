"""``gate: hook`` under CRI: NRI injects the hook, the entrypoint's first act finds its model, no fault fails a pod."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.e2e.bed import MIB, Bed
from tests.lab import pages
from tests.lab.containerd import Containerd
from tests.lab.cri import Container, until
from tests.lab.plugin import PluginProcess
from tests.lab.store import ROOT, probe_binary
from tests.oci.bundle import runtime_command

HOOK = ROOT / "hooks" / "nri-warmup-hook"
LABELS = {"app": "llm"}
MODEL = "/models/model.bin"
WARM = f"resident {MODEL} 4096 4096"


def config(**profile: Any) -> dict[str, Any]:
    return {
        "profiles": {"model": {"files": ["/models/**"], "gate": "hook", "reserve": "4Mi", **profile}},
        "selectors": [{"profile": "model", "matchLabels": LABELS}],
    }


def plugin_with_hook(bed: Bed, hook: Path = HOOK, **profile: Any) -> PluginProcess:
    return bed.plugin(config(**profile), arguments=[f"--hook={hook}"])


def codes(entry: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in entry["reasons"]}


def test_first_act_finds_every_page_and_nothing_is_read_twice(bed: Bed) -> None:
    model = bed.model(size=16 * MIB)
    plugin = plugin_with_hook(bed)
    container = bed.container(
        bed.pod(labels=LABELS), "resident", MODEL, "sleep", "1000", volumes=[bed.volume(model.parent)]
    )
    assert bed.cri.wait_line(container, "resident") == WARM
    entry = plugin.outcome(container.id)
    assert (entry["state"], entry["gate"], entry["outcome"]["read_bytes"]) == ("done", "hook", 16 * MIB)
    assert entry["outcome"]["charged"] and bed.share_owned(model, container) >= 0.99
    metrics = plugin.metrics()
    assert metrics['nri_warmup_gates_total{result="held"}'] == 1
    assert sum(v for k, v in metrics.items() if k.startswith("nri_warmup_warmups_total")) == 1


def test_model_in_the_image(bed: Bed) -> None:
    image, stored = bed.image_model(16 * MIB, with_probe=True)
    plugin = bed.plugin(
        {**config(), "selectors": [{"profile": "model", "matchLabels": LABELS, "containers": ["server"]}]},
        arguments=[f"--hook={HOOK}"],
    )
    container = bed.create(bed.pod(labels=LABELS), "/probe", "resident", MODEL, "sleep", "1000", image=image)
    assert pages.resident_share(stored) == 0
    bed.cri.start(container)
    assert bed.cri.wait_line(container, "resident") == WARM
    assert plugin.outcome(container.id)["state"] == "done"


def test_beyond_the_hold_it_warms_on_beside(faulty: Bed) -> None:
    slow = faulty.slow(24 * MIB, 12 * MIB)
    plugin = plugin_with_hook(faulty, hold="300ms")
    container = faulty.create(
        faulty.pod(labels=LABELS), "resident", MODEL, "sleep", "1000", volumes=[faulty.volume(slow.directory)]
    )
    began = time.monotonic()
    faulty.cri.start(container)
    assert time.monotonic() - began < 1.8, "two seconds of reading were not to be waited for"
    resident, total = map(int, faulty.cri.wait_line(container, "resident").split()[2:])
    assert 0 < resident < total
    assert plugin.outcome(container.id)["state"] == "done"
    assert pages.resident_share(slow.file) == 1.0
    assert plugin.metrics()['nri_warmup_gates_total{result="beside"}'] == 1


def test_pod_stopped_while_it_is_held(faulty: Bed) -> None:
    """kubelet deletes the pod: the hook lets go at once, StartContainer returns."""
    slow = faulty.slow(64 * MIB, 2 * MIB)
    plugin = plugin_with_hook(faulty)
    pod = faulty.pod(labels=LABELS)
    container = faulty.create(pod, "sleep", "1000", volumes=[faulty.volume(slow.directory)])
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(faulty.cri.start, container)
        until("the hold", lambda: (plugin.entry(container.id) or {}).get("state") == "running", 20)
        assert not starting.done()
        began = time.monotonic()
        faulty.cri.stop_pod(pod)
        starting.exception(20)
        assert time.monotonic() - began < 8
    assert plugin.outcome(container.id)["state"] in ("cancelled", "container-gone")


def test_closed_fails_the_start_with_one_clear_line(faulty: Bed) -> None:
    model = faulty.model(size=32 * MIB)
    plugin = plugin_with_hook(faulty, on_error="closed")
    container = faulty.create(
        faulty.pod(labels=LABELS), "say", "started", memory_bytes=24 * MIB, volumes=[faulty.volume(model.parent)]
    )
    with pytest.raises(grpc.RpcError) as failed:
        faulty.cri.start(container)
    text = str(failed.value.details())
    assert text.count("nri-warmup: not started, on_error is closed: over-budget: ") == 1, text
    assert list(faulty.cri.lines(container)) == []
    assert plugin.metrics()['nri_warmup_gates_total{result="closed"}'] == 1


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_plugin_away_when_the_hook_calls(faulty: Bed, how: str) -> None:
    """It injected the hook at create and is dead, or stands still, at start."""
    model = faulty.model(size=MIB)
    plugin = plugin_with_hook(faulty)
    container = faulty.create(faulty.pod(labels=LABELS), "say", "started", volumes=[faulty.volume(model.parent)])
    if how == "killed":
        plugin.kill()
    else:
        plugin.signal(signal.SIGSTOP)
    try:
        faulty.cri.start(container)
        faulty.cri.wait_line(container, "say started")
    finally:
        if how == "stopped":
            plugin.signal(signal.SIGCONT)


def test_plugin_restarted_between_create_and_start(faulty: Bed) -> None:
    """Synchronize tells it of the container it does not remember; the hook then finds it planned."""
    model = faulty.model(size=16 * MIB)
    plugin = plugin_with_hook(faulty)
    container = faulty.create(
        faulty.pod(labels=LABELS), "resident", MODEL, "sleep", "1000", volumes=[faulty.volume(model.parent)]
    )
    plugin.kill()
    plugin.start()
    faulty.cri.start(container)
    assert faulty.cri.wait_line(container, "resident") == WARM


@pytest.mark.parametrize("gone", ["hook", "interpreter"])
def test_hook_or_interpreter_gone_after_the_self_test(faulty: Bed, gone: str) -> None:
    interpreter = faulty.directory / "python3"
    interpreter.symlink_to(shutil.which("python3", path="/usr/bin") or "/usr/bin/python3")
    hook = faulty.directory / "hook"
    hook.write_text(HOOK.read_text().replace("#!/usr/bin/python3", f"#!{interpreter}", 1))
    hook.chmod(0o755)
    model = faulty.model(size=16 * MIB)
    plugin = plugin_with_hook(faulty, hook)

    def start() -> Container:
        return faulty.container(
            faulty.pod(labels=LABELS), "resident", MODEL, "sleep", "1000", volumes=[faulty.volume(model.parent)]
        )

    container = start()
    assert faulty.cri.wait_line(container, "resident") == WARM
    (hook if gone == "hook" else interpreter).unlink()
    container = start()
    assert faulty.cri.running(container)
    entry = plugin.outcome(container.id)
    assert entry["gate"] == "none" and "hook-unusable" in codes(entry)


# What a validator of the runtime forbids


@pytest.fixture(scope="module")
def rejecting() -> Iterator[Containerd]:
    """containerd with the built-in validator that refuses hooks of plugins."""
    nri = {"default_validator.enable": True, "default_validator.reject_oci_hook_adjustment": True}
    runtime = Containerd("2.4", nri=nri)
    with runtime:
        runtime.add_image("localhost/probe:1", {"probe": probe_binary()}, directories=["models", "sync", "tmp"])
        yield runtime


@pytest.fixture
def rejecting_bed(rejecting: Containerd) -> Iterator[Bed]:
    directory = rejecting.directory / f"t{time.monotonic_ns() % 10**9}"
    directory.mkdir()
    bed = Bed(rejecting, directory)
    yield bed
    left = bed.close()
    assert not left, f"left behind: {left}"


def test_validator_that_forbids_hooks_is_read_from_the_configuration(rejecting_bed: Bed) -> None:
    bed = rejecting_bed
    model = bed.model(size=MIB)
    plugin = plugin_with_hook(bed)
    container = bed.container(bed.pod(labels=LABELS), "sleep", "1000", volumes=[bed.volume(model.parent)])
    entry = plugin.outcome(container.id)
    assert (entry["state"], entry["gate"]) == ("done", "none")
    [reason] = [r for r in entry["reasons"] if r["code"] == "hook-unusable"]
    assert "reject_oci_hook_adjustment" in reason["text"]


def test_validator_that_nothing_tells_of_refuses_once(rejecting_bed: Bed) -> None:
    """Its configuration file is gone since it was started: the first refusal is the last."""
    bed = rejecting_bed
    assert isinstance(bed.runtime, Containerd)
    config_file = bed.runtime.directory / "config.toml"
    hidden = config_file.with_suffix(".away")
    config_file.rename(hidden)
    try:
        plugin = plugin_with_hook(bed)
        model = bed.model(size=MIB)
        pod = bed.pod(labels=LABELS)
        with pytest.raises(grpc.RpcError, match="restricted OCI hook injection"):
            bed.create(pod, "sleep", "1000", volumes=[bed.volume(model.parent)])
        container = bed.container(pod, "sleep", "1000", name="again", volumes=[bed.volume(model.parent)])
        entry = plugin.outcome(container.id)
        assert (entry["state"], entry["gate"]) == ("done", "none")
        assert "hook-unusable" in codes(entry)
    finally:
        hidden.rename(config_file)


# crun below containerd


def test_crun_below_containerd() -> None:
    """The newer crun: 1.8 refuses the version that these containerds write into the spec."""
    script = Path(f"/var/tmp/nriw-crun-{os.getpid()}")
    script.write_text(f'#!/bin/sh\nexec {shlex.join(runtime_command("crun-forky"))} "$@"\n')
    script.chmod(0o755)
    try:
        with Containerd("2.4", handlers={"crun": script}) as runtime:
            runtime.add_image("localhost/probe:1", {"probe": probe_binary()}, directories=["models", "sync", "tmp"])
            directory = runtime.directory / "t"
            directory.mkdir()
            bed = Bed(runtime, directory)
            model = bed.model(size=16 * MIB)
            plugin = plugin_with_hook(bed)
            pod = bed.pod(labels=LABELS, handler="crun")
            container = bed.container(pod, "resident", MODEL, "sleep", "1000", volumes=[bed.volume(model.parent)])
            assert bed.cri.wait_line(container, "resident") == WARM
            assert plugin.outcome(container.id)["gate"] == "hook"
            assert bed.close() == []
    finally:
        script.unlink()
