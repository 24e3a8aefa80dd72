"""``gate: hook`` on bare runtimes: the entrypoint's first act finds its files in the page cache, wherever it runs."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.lab import pages
from tests.lab.cri import until
from tests.lab.plugin import PluginProcess
from tests.lab.slowfs import SlowFs
from tests.oci.bundle import Bundle
from tests.oci.conftest import MIB, MakeBundle, hooked

MODEL = "/models/model.bin"


def test_first_act_finds_every_page(runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle) -> None:
    model = pages.make_model(place / "m" / "model.bin", 16 * MIB)
    bundle = hooked(make_bundle(runtime, "/probe", "resident", MODEL), daemon, model.parent, "held", "--closed")
    ended = bundle.run()
    assert (ended.code, ended.lines) == (0, [f"resident {MODEL} 4096 4096"]), (ended, daemon.log_tail())
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert (outcome["state"], outcome["read_bytes"], outcome["charged"]) == ("done", 16 * MIB, True)
    assert daemon.metrics()['nri_warmup_gates_total{result="held"}'] == 1


def test_pages_are_the_containers_own_before_it_starts(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    """The file is in the image, so that the worker has to find it below a rootfs that is not pivoted into yet."""
    bundle = make_bundle(runtime, "/probe", "resident", MODEL, memory_bytes=64 * MIB)
    model = pages.make_model(bundle.rootfs / "models" / "model.bin", 8 * MIB)
    hooked(bundle, daemon, place / "none", "held").spec["mounts"].pop()
    created = bundle.create()
    assert created.code == 0, created
    assert pages.resident_share(model) == 1.0
    assert pages.owners(model)[pages.memory_cgroup(bundle.pid).stat().st_ino] == 2048
    assert bundle.start().code == 0
    until("the entrypoint's word", lambda: bundle.output, 20)
    assert bundle.output == [f"resident {MODEL} 2048 2048"]


def test_hold_is_bounded_and_the_rest_warms_beside(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    """The runtime pivots away under the worker's feet."""
    slow = SlowFs(place / "slow", 24 * MIB, 12 * MIB)
    try:
        args = ("/probe", "resident", MODEL, "sleep", "1000")
        bundle = hooked(make_bundle(runtime, *args), daemon, slow.directory, "brief", "--closed")
        created = bundle.create()
        assert created.code == 0, created
        assert created.seconds < 1.5, "two seconds of reading were not to be waited for"
        assert bundle.start().code == 0
        until("the entrypoint's word", lambda: bundle.output, 20)
        resident, total = map(int, bundle.output[0].split()[2:])
        assert 0 < resident < total
        outcome = daemon.outcome(bundle.id)["outcome"]
        assert (outcome["state"], outcome["resident_bytes"]) == ("done", 24 * MIB)
        os.kill(bundle.pid, signal.SIGKILL)
        until("the daemon's farewell", lambda: daemon.status()["containers"] == [], 10)
    finally:
        slow.close()


def test_profile_without_a_gate_holds_nothing(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    slow = SlowFs(place / "slow", 24 * MIB, 12 * MIB)
    try:
        bundle = hooked(make_bundle(runtime, "/probe", "sleep", "1000"), daemon, slow.directory, "beside")
        created = bundle.create()
        assert created.code == 0 and created.seconds < 1.5, created
        entry = daemon.entry(bundle.id)
        assert entry is not None and entry["state"] in ("queued", "running")
    finally:
        slow.close()


def test_killed_while_it_is_held(runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle) -> None:
    slow = SlowFs(place / "slow", 64 * MIB, 2 * MIB)
    try:
        bundle = hooked(make_bundle(runtime, "/probe", "sleep", "1000"), daemon, slow.directory, "held")
        with ThreadPoolExecutor(1) as thread:
            creating = thread.submit(bundle.create)
            running = until("the warm-up", lambda: _state(daemon, bundle) == "running" and daemon.status(), 20)
            assert not creating.done()
            [pid] = _members(bundle)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            creating.result(20)
            assert time.monotonic() - began < 5
            assert running["jobs"]["running"] == 1
        until("no job", lambda: daemon.status()["jobs"]["running"] == 0, 5)
    finally:
        slow.close()


def test_closed_refuses_a_container_that_could_not_be_warmed(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    model = pages.make_model(place / "m" / "model.bin", 32 * MIB)
    bundle = make_bundle(runtime, "/probe", "say", "started", memory_bytes=24 * MIB)
    hooked(bundle, daemon, model.parent, "strict", "--closed")
    ended = bundle.run()
    assert ended.code != 0 and ended.out == ""
    line = "nri-warmup: not started, on_error is closed: over-budget: "
    text = bundle.said.read_text() if runtime.startswith("crun") else ended.err
    assert text.count(line) == 1, ended


def _state(daemon: PluginProcess, bundle: Bundle) -> str:
    entry = daemon.entry(bundle.id)
    return str(entry["state"]) if entry else ""


def _members(bundle: Bundle) -> list[int]:
    """Host pids in the container's pids cgroup, without the worker (which joins it for its time)."""
    mounts = pages.cgroup_mounts()
    directory = mounts["pids" if "pids" in mounts else ""] / bundle.parent.strip("/") / bundle.id
    pids = [int(pid) for pid in (directory / "cgroup.procs").read_text().split()]
    return [pid for pid in pids if "nri_warmup" not in Path(f"/proc/{pid}/cmdline").read_text()]


def test_observe_measures_and_changes_nothing(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    """Half of the model is resident: the report says so, and it stays like that."""
    model = pages.make_model(place / "m" / "model.bin", 16 * MIB)
    with model.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        stream.read(4 * MIB)
    before = pages.resident_pages(model)[0]
    bundle = hooked(make_bundle(runtime, "/probe", "sleep", "1000"), daemon, model.parent, "watched")
    assert bundle.create().code == 0
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert (outcome["state"], outcome["wanted_bytes"], outcome["read_bytes"]) == ("observed", 16 * MIB, 0)
    assert outcome["resident_bytes"] == before * pages.PAGE
    assert pages.resident_pages(model)[0] == before < 4096
    assert not outcome["charged"]
