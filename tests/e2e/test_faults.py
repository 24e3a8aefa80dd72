"""What goes wrong on a node, made to go wrong.

Always: the container runs, the plugin is registered still or again, status tells what happened, and nothing of ours is
left, which the bed sees to.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import MIB, Bed
from tests.lab import pages
from tests.lab.cri import Container, until
from tests.lab.plugin import PluginProcess

LABELS = {"app": "llm"}
CONFIG: dict[str, Any] = {
    "profiles": {"model": {"files": ["/models/**"], "reserve": "8Mi"}},
    "selectors": [{"profile": "model", "matchLabels": LABELS}],
}
HELD_S = 0.5
"""A CRI call that takes this long, where it otherwise takes 0.1 s, is waiting for the stopped plugin."""


def _works(bed: Bed, plugin: PluginProcess) -> None:
    """Registered, and warms the next container as if nothing had been."""
    plugin.wait_registered()
    model = bed.model(f"works-{time.monotonic_ns()}/model.bin", 2 * MIB)
    container = bed.container(bed.pod(labels=LABELS), "sleep", "1000", volumes=[bed.volume(model.parent)])
    entry = plugin.outcome(container.id)
    assert entry["state"] == "done", entry
    assert pages.resident_share(model) == 1.0


def _held(call: Callable[[], Any], plugin: PluginProcess, then: Callable[[], None]) -> Any:
    """Stop the plugin, make the call, see that it waits for the plugin, do ``then``, give the call's result."""
    plugin.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as thread:
        future: Future[Any] = thread.submit(call)
        time.sleep(HELD_S)
        assert not future.done(), "the runtime did not wait for the plugin: this test shows nothing"
        then()
        return future.result(60)


def _worker(plugin: PluginProcess) -> int:
    """The pid of the process that reads, once there is one: a child of the zygote."""

    def look() -> int | None:
        helpers = plugin.note_helpers()
        pids = {helper.pid for helper in helpers}
        return next((helper.pid for helper in helpers if helper.parent in pids), None)

    return int(until("a worker", look, 20))


def _zygote(plugin: PluginProcess) -> int:
    return next(helper.pid for helper in plugin.note_helpers() if helper.parent == plugin.pid)


def _half_warm(bed: Bed, plugin: PluginProcess, *, mib_per_s: int = 8) -> tuple[Container, Path]:
    """A container whose warm-up has begun and has seconds to go."""
    slow = bed.slow(64 * MIB, mib_per_s * MIB)
    container = bed.container(bed.pod(labels=LABELS), "sleep", "1000", volumes=[bed.volume(slow.directory)])
    until("the first pages", lambda: pages.resident_share(slow.file) > 0, 20)
    assert pages.resident_share(slow.file) < 1
    return container, slow.file


# The plugin dies


def test_killed_in_create_container(faulty: Bed) -> None:
    model = faulty.model(size=4 * MIB)
    plugin = faulty.plugin(CONFIG)
    pod = faulty.pod(labels=LABELS)

    def create() -> Container:
        return faulty.create(pod, "sleep", "1000", volumes=[faulty.volume(model.parent)])

    container = _held(create, plugin, plugin.kill)
    faulty.cri.start(container)

    assert faulty.cri.running(container)
    plugin.start()
    assert plugin.outcome(container.id)["late"]
    _works(faulty, plugin)


def test_killed_in_start_container(faulty: Bed) -> None:
    model = faulty.model(size=4 * MIB)
    plugin = faulty.plugin(CONFIG)
    container = faulty.create(faulty.pod(labels=LABELS), "sleep", "1000", volumes=[faulty.volume(model.parent)])

    _held(lambda: faulty.cri.start(container), plugin, plugin.kill)

    assert faulty.cri.running(container)
    plugin.start()
    entry = plugin.outcome(container.id)
    assert (entry["state"], entry["late"]) == ("done", True)
    _works(faulty, plugin)


def test_killed_in_a_warm_up(faulty: Bed) -> None:
    plugin = faulty.plugin(CONFIG)
    container, model = _half_warm(faulty, plugin)
    assert _worker(plugin)

    plugin.kill()

    assert plugin.left(timeout_s=5) == []
    assert faulty.cri.running(container)
    share = pages.resident_share(model)
    assert 0 < share < 1
    plugin.start()
    entry = plugin.outcome(container.id)
    assert entry["late"] and entry["state"] == "done"
    assert pages.resident_share(model) == 1.0
    _works(faulty, plugin)


def test_the_zygote_is_killed(faulty: Bed) -> None:
    plugin = faulty.plugin(CONFIG)
    container, _ = _half_warm(faulty, plugin)
    worker = _worker(plugin)

    os.kill(_zygote(plugin), signal.SIGKILL)

    entry = plugin.outcome(container.id)
    assert entry["state"] == "failed" and entry["outcome"]["reason"], entry
    until("the worker's end", lambda: not Path(f"/proc/{worker}").exists(), 5)
    assert faulty.cri.running(container)
    _works(faulty, plugin)


def test_a_worker_is_killed(faulty: Bed) -> None:
    plugin = faulty.plugin(CONFIG)
    container, _ = _half_warm(faulty, plugin)
    zygote = _zygote(plugin)

    os.kill(_worker(plugin), signal.SIGKILL)

    entry = plugin.outcome(container.id)
    assert entry["state"] == "failed" and entry["outcome"]["reason"], entry
    assert faulty.cri.running(container)
    assert _zygote(plugin) == zygote
    _works(faulty, plugin)


# The plugin or its reads are slow


def test_a_slow_handler_is_cut_off_and_comes_back(faulty: Bed) -> None:
    """The runtime gives up on the stopped plugin after its time-out, creates without it and drops it."""
    model = faulty.model(size=4 * MIB)
    plugin = faulty.plugin(CONFIG)
    limit = plugin.status()["connection"]["request_timeout_s"]
    pod = faulty.pod(labels=LABELS)

    began = time.monotonic()
    plugin.signal(signal.SIGSTOP)
    container = faulty.create(pod, "sleep", "1000", volumes=[faulty.volume(model.parent)])
    assert time.monotonic() - began >= limit * 0.9
    faulty.cri.start(container)
    assert faulty.cri.running(container)
    plugin.signal(signal.SIGCONT)

    until("a lost connection", lambda: plugin.status()["connection"]["disconnects"] >= 1, 20)
    plugin.wait_registered()
    entry = plugin.outcome(container.id)
    assert (entry["state"], entry["late"]) == ("done", True)
    assert pages.resident_share(model) == 1.0
    _works(faulty, plugin)


def test_a_read_that_hangs_costs_its_slot_only(faulty: Bed) -> None:
    """No kill ends such a read. The daemon's deadline does, and the next container does not wait for it."""
    config = {**CONFIG, "profiles": {"model": {"files": ["/models/**"], "deadline": "2s"}}}
    plugin = faulty.plugin(config)
    slow = faulty.slow(16 * MIB, 16 * MIB)
    slow.hold()
    container = faulty.container(faulty.pod(labels=LABELS), "sleep", "1000", volumes=[faulty.volume(slow.directory)])

    entry = plugin.outcome(container.id, timeout_s=20)

    assert entry["state"] == "deadline", entry
    assert faulty.cri.running(container)
    _works(faulty, plugin)
    slow.release()


# The runtime


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_the_runtime_is_restarted(faulty: Bed, how: signal.Signals) -> None:
    model = faulty.model(size=4 * MIB)
    plugin = faulty.plugin(CONFIG)
    container = faulty.container(faulty.pod(labels=LABELS), "sleep", "1000", volumes=[faulty.volume(model.parent)])
    plugin.outcome(container.id)
    pid = plugin.pid

    faulty.runtime.stop(how)
    until("a lost connection", lambda: plugin.status()["connection"]["state"] != "registered", 20)
    faulty.runtime.start()

    plugin.wait_registered()
    assert plugin.pid == pid
    assert faulty.cri.running(container)
    assert plugin.status()["connection"]["disconnects"] >= 1
    _works(faulty, plugin)
    warmed = [name for name in plugin.metrics() if name.startswith("nri_warmup_warmups_total")]
    assert sum(plugin.metrics()[name] for name in warmed) == 2, "a container was warmed twice"


# The model


def test_a_model_is_truncated_while_it_is_warmed(faulty: Bed) -> None:
    model = faulty.directory / "models" / "model.bin"
    model.parent.mkdir()
    block = os.urandom(MIB)
    with model.open("wb") as out:
        for _ in range(512):
            out.write(block)
    pages.evict(model)
    plugin = faulty.plugin(CONFIG)
    container = faulty.create(faulty.pod(labels=LABELS), "sleep", "1000", volumes=[faulty.volume(model.parent)])
    with ThreadPoolExecutor(1) as thread:
        started = thread.submit(faulty.cri.start, container)
        until("the first pages", lambda: pages.resident_share(model) > 0.02, 20, 0.001)
        os.truncate(model, 8 * MIB)
        started.result(30)

    entry = plugin.outcome(container.id)
    assert entry["outcome"]["read_bytes"] < 512 * MIB, "it was truncated too late: this test shows nothing"
    assert entry["state"] in ("partial", "done"), entry
    assert [found["state"] for found in entry["outcome"]["files"]] == ["shrank"], entry
    assert faulty.cri.running(container)
    _works(faulty, plugin)


def test_a_model_larger_than_the_memory_limit(faulty: Bed) -> None:
    limit = 64 * MIB
    model = faulty.model(size=128 * MIB)
    plugin = faulty.plugin(CONFIG)
    container = faulty.container(
        faulty.pod(labels=LABELS), "sleep", "1000", volumes=[faulty.volume(model.parent)], memory_bytes=limit
    )

    entry = plugin.outcome(container.id)

    cgroup = pages.memory_cgroup(faulty.cri.pid(container))
    resident, _ = pages.resident_pages(model)
    assert entry["state"] == "over-budget", entry
    budget = entry["outcome"]["budget_bytes"]
    assert 0 < budget <= limit - 8 * MIB
    # The budget leaves room for the kernel's own readahead past its end; what is read stays within limit - reserve.
    assert entry["outcome"]["read_bytes"] <= limit - 8 * MIB
    assert resident * pages.PAGE <= limit - 8 * MIB
    assert pages.memory_usage(cgroup) <= limit
    assert pages.oom_kills(cgroup) == 0
    assert pages.memory_stat(cgroup)["workingset_refault_file"] <= 64
    assert faulty.share_owned(model, container) >= 0.99
    assert faulty.cri.running(container)


# What a tenant may write


def _link_out_of_the_root(directory: Path, secret: Path) -> None:
    (directory / "absolute").symlink_to(secret)
    (directory / "relative").symlink_to("../" * 40 + str(secret).lstrip("/"))
    (directory / "magic").symlink_to(f"/proc/1/root{secret}")
    (directory / "folder").symlink_to(secret.parent)


def _fifo(directory: Path, _: Path) -> None:
    os.mkfifo(directory / "pipe", 0o666)


def _device(directory: Path, _: Path) -> None:
    os.mknod(directory / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def _nothing(_: Path, __: Path) -> None:
    pass


def _many_files(directory: Path, _: Path) -> None:
    for outer in range(60):
        for inner in range(60):
            where = directory / f"d{outer}" / f"e{inner}"
            where.mkdir(parents=True)
            (where / "f").touch()


@pytest.mark.parametrize(
    ("prepare", "patterns"),
    [
        (_link_out_of_the_root, "/models/**\n/models/absolute\n/models/magic\n/models/folder/*\n/models/relative"),
        (_fifo, "/models/pipe\n/models/*"),
        (_device, "/models/zero\n/dev/zero\n/dev/**"),
        (_nothing, "/proc/**\n/proc/kcore\n/proc/1/mem\n/proc/kmsg\n/sys/**\n/sys/fs/cgroup/**"),
        (_many_files, "/**/**/**/*\n/models/**/*/**/*/**\n/*/*/*/*/*/*/*/*\n" + "/models/*" * 200),
        (_nothing, "relative\n/../../etc\n/models/[\n\x1b[2J\n" + "/a" * 5000),
    ],
    ids=["link-out-of-the-root", "fifo", "device", "proc", "huge-glob", "nonsense"],
)
def test_a_hostile_annotation(faulty: Bed, prepare: Callable[[Path, Path], None], patterns: str) -> None:
    secret = faulty.model("secret/secret.bin", MIB)
    models = faulty.directory / "models"
    models.mkdir()
    prepare(models, secret)
    plugin = faulty.plugin(CONFIG)
    annotations = {"profile.nri-warmup.dev": "model", "files.nri-warmup.dev": patterns}
    pod = faulty.pod(annotations=annotations)

    container = faulty.container(pod, "sleep", "1000", volumes=[faulty.volume(models)])

    entry = plugin.outcome(container.id, timeout_s=60)
    assert pages.resident_share(secret) == 0.0
    assert entry["state"] in ("done", "partial", "skipped"), entry
    assert (entry["outcome"] or {"read_bytes": 0})["read_bytes"] <= 4 * MIB
    assert faulty.cri.running(container)
    plugin.wait_registered()
    _works(faulty, plugin)


# Stopping and numbers


def _file_system(faulty: Bed) -> Path:
    image = faulty.directory / "volume.img"
    with image.open("wb") as out:
        out.truncate(96 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    mounted = faulty.directory / "volume"
    mounted.mkdir()
    subprocess.run(["mount", "-o", "loop", image, mounted], check=True)
    return mounted


def test_a_volume_is_unmounted_right_after_the_pod_stops(faulty: Bed) -> None:
    """A loop mount whose warm-up is in full swing, or just over."""
    mounted = _file_system(faulty)
    try:
        pages.make_model(mounted / "model.bin", 64 * MIB)
        plugin = faulty.plugin(CONFIG)
        pod = faulty.pod(labels=LABELS)
        container = faulty.container(pod, "sleep", "1000", volumes=[faulty.volume(mounted)])
        until("the first pages", lambda: pages.resident_share(mounted / "model.bin") > 0, 20, 0.002)
        faulty.cri.stop_pod(pod)
        _unmount_within(mounted, 1.0)
    finally:
        if os.path.ismount(mounted):
            subprocess.run(["umount", "-l", mounted], check=False)
    assert plugin.outcome(container.id)["state"] in ("done", "cancelled", "container-gone")
    _works(faulty, plugin)


def test_a_volume_is_unmounted_in_the_middle_of_its_warm_up(faulty: Bed) -> None:
    plugin = faulty.plugin(CONFIG)
    container, model = _half_warm(faulty, plugin)

    faulty.cri.stop_pod(container.pod)

    _unmount_within(model.parent, 1.0)
    entry = plugin.outcome(container.id)
    assert entry["state"] in ("cancelled", "container-gone"), entry
    _works(faulty, plugin)


def _unmount_within(mounted: Path, seconds: float) -> None:
    """As kubelet does it, which tries again: not lazily."""
    until(
        f"an unmounted {mounted.name}",
        lambda: subprocess.run(["umount", mounted], capture_output=True, check=False).returncode == 0,
        seconds,
    )


def test_a_hundred_containers_at_once(faulty: Bed) -> None:
    plugin = faulty.plugin({**CONFIG, "limits": {"namespace_jobs": 8}})
    models = [faulty.model(f"m{index}/model.bin", MIB) for index in range(10)]
    containers = []
    for model in models:
        pod = faulty.pod(labels=LABELS)
        for index in range(10):
            container = faulty.create(pod, "sleep", "1000", name=f"c{index}", volumes=[faulty.volume(model.parent)])
            containers.append(container)

    with ThreadPoolExecutor(100) as threads:
        list(threads.map(faulty.cri.start, containers))

    entries = [plugin.outcome(container.id, timeout_s=120) for container in containers]
    assert {entry["state"] for entry in entries} == {"done"}
    assert all(entry["outcome"]["coverage"] == 1.0 for entry in entries)
    assert all(faulty.cri.running(container) for container in containers)
    assert [pages.resident_share(model) for model in models] == [1.0] * 10
    connection = plugin.status()["connection"]
    assert (connection["state"], connection["disconnects"]) == ("registered", 0)
