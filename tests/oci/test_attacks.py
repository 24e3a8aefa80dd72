"""Hostile containers, as real ones: root inside, with the capabilities that every container gets, against the worker
that warms for them. None gets a descriptor, runs code outside, or holds the worker beyond its deadline."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.test_poison import MARK, nasty_names, poison
from tests.lab import leftovers, pages
from tests.lab.cri import until
from tests.lab.plugin import PluginProcess
from tests.lab.slowfs import SlowFs
from tests.oci.bundle import Bundle, compiled
from tests.oci.conftest import HOOK, MIB, MakeBundle, answers

RUNTIME = "runc-bookworm"
ATTACK = Path(__file__).with_name("attack.c")
SLOW_S = 2.0
CONFIG: dict[str, Any] = {
    "profiles": {
        "slow": {"files": ["/slow/*", "/models/**"], "reserve": "1Mi", "deadline": "20s"},
        "squeezed": {"files": ["/slow/*"], "reserve": "1Mi", "deadline": "5s"},
        "hangs": {"files": ["/slow/*"], "reserve": "1Mi", "deadline": "2s"},
        "held": {"files": ["/models/**"], "gate": "hook", "reserve": "1Mi"},
    }
}
"""``slow`` begins with a file that takes SLOW_S: the container runs and attacks while the worker is in it."""


@pytest.fixture
def daemon(place: Path) -> Iterator[PluginProcess]:
    process = PluginProcess(place / "nri.sock", place / "d", CONFIG, arguments=[f"--hook={HOOK}"])
    process.start(wait=False)
    until("the control socket", lambda: answers(process), 30)
    yield process
    process.stop()


@pytest.fixture
def slow(place: Path) -> Iterator[SlowFs]:
    fs = SlowFs(place / "slow", 16 * MIB, int(16 * MIB / SLOW_S))
    yield fs
    fs.close()


def hostile(bundle: Bundle, daemon: PluginProcess, profile: str, slow: SlowFs | None = None) -> Bundle:
    bundle.add("attack", compiled(ATTACK))
    if slow is not None:
        bundle.mount(slow.directory, "/slow", "ro")
    bundle.annotate(profile=profile)
    bundle.hook("createRuntime", HOOK, "--socket", str(daemon.control), "--deadline", "60")
    return bundle


def worker(daemon: PluginProcess) -> leftovers.Process:
    """The child of the zygote."""

    def look() -> leftovers.Process | None:
        helpers = {p.pid: p for p in leftovers.descendants(daemon.pid)}
        return next((p for p in helpers.values() if p.parent in helpers), None)

    found: leftovers.Process = until("a worker", look, 20)
    return found


def started(bundle: Bundle) -> None:
    created = bundle.create()
    assert created.code == 0, created
    assert bundle.start().code == 0


def stop(bundle: Bundle) -> None:
    """The attack ends, and all it has to say is in ``output``."""
    (bundle.rootfs / "stop").touch()
    until("the end of the attack", lambda: leftovers.read_process(bundle.pid) is None, 20)


def test_no_process_of_the_container_reaches_into_the_worker(
    daemon: PluginProcess, slow: SlowFs, make_bundle: MakeBundle
) -> None:
    """In the host's pid namespace, so that it sees the worker at all. The victim shows that the attacks are real."""
    bundle = hostile(make_bundle(RUNTIME, "/attack", "hunt", "30"), daemon, "slow", slow)
    bundle.spec["linux"]["namespaces"] = [n for n in bundle.spec["linux"]["namespaces"] if n["type"] != "pid"]
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "sleep", "60"]
    with subprocess.Popen(command) as victim:
        try:
            until("a victim without capabilities", lambda: "sleep" in _comm(victim.pid), 10)
            started(bundle)
            target = worker(daemon)
            outcome = daemon.outcome(bundle.id)["outcome"]
            stop(bundle)
        finally:
            victim.kill()
    lines = set(bundle.output)
    assert {f"got {how} {victim.pid}" for how in ("fd", "ptrace", "mem", "root/", "cwd/", "environ")} <= lines
    assert f"tried all {target.pid}" in lines, "it never saw the worker: this test shows nothing"
    assert not [line for line in lines if line.startswith("got") and line.endswith(f" {target.pid}")]
    zygote_and_daemon = {str(target.parent), str(daemon.pid)}
    assert not [line for line in lines if line.startswith("got") and line.split()[-1] in zygote_and_daemon]
    assert [file["state"] for file in outcome["files"] if file["path"].startswith("/slow")] == ["warmed"]


def test_poisoned_image_is_never_run(daemon: PluginProcess, make_bundle: MakeBundle) -> None:
    """By way of the hook: the worker is in the image before anything of the image has run."""
    bundle = hostile(make_bundle(RUNTIME, "/probe", "say", "started"), daemon, "held")
    poison(bundle.rootfs)
    models = bundle.rootfs / "models"
    models.mkdir()
    nasty_names(models)
    ended = bundle.run()
    assert ended.lines == ["say started"], ended
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert outcome["state"] == "partial" and outcome["files_total"] >= 8
    assert not (bundle.rootfs / MARK.lstrip("/")).exists()


def test_files_swapped_under_the_worker(
    place: Path, daemon: PluginProcess, slow: SlowFs, make_bundle: MakeBundle
) -> None:
    secret = pages.make_model(place / "secret", MIB)
    bundle = make_bundle(RUNTIME, "/attack", "swap", "/models", "30", f"/../../../../../../..{secret}")
    hostile(bundle, daemon, "slow", slow)
    for number in range(300):
        bundle.add(f"models/f{number:03}", b"x" * 8192).chmod(0o644)
    began = time.monotonic()
    started(bundle)
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert outcome["state"] in ("done", "partial") and time.monotonic() - began < 15, outcome
    stop(bundle)
    [swapped] = [int(line.split()[2]) for line in bundle.output if line.startswith("swapped")]
    assert swapped > 1000
    assert "opened fifo 0" not in bundle.output
    assert pages.resident_share(secret) == 0.0
    assert outcome["resident_bytes"] <= 16 * MIB + 300 * 8192


def test_file_system_that_hangs_costs_a_slot_and_no_more(
    place: Path, daemon: PluginProcess, slow: SlowFs, make_bundle: MakeBundle
) -> None:
    slow.hold()
    bundle = hostile(make_bundle(RUNTIME, "/probe", "sleep", "1000"), daemon, "hangs", slow)
    began = time.monotonic()
    started(bundle)
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert outcome["state"] == "deadline" and time.monotonic() - began < 6, outcome
    model = pages.make_model(place / "m" / "model.bin", MIB)
    other = hostile(make_bundle(RUNTIME, "/probe", "resident", "/models/model.bin"), daemon, "held")
    other.mount(model.parent, "/models", "ro")
    assert other.run().lines == ["resident /models/model.bin 256 256"]
    slow.release()


def test_pids_used_up(daemon: PluginProcess, slow: SlowFs, make_bundle: MakeBundle) -> None:
    bundle = hostile(make_bundle(RUNTIME, "/attack", "forks", "60"), daemon, "slow", slow)
    bundle.spec["linux"]["resources"]["pids"] = {"limit": 16}
    (bundle.rootfs / "models").mkdir()
    started(bundle)
    until("no more pids", lambda: any(line.startswith("full") for line in bundle.output), 20)
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert outcome["resident_bytes"] == 16 * MIB, outcome


def test_memory_used_up(daemon: PluginProcess, slow: SlowFs, make_bundle: MakeBundle) -> None:
    """The container takes what the budget had been worked out from: our pages are reclaimed, nobody of it is killed."""
    bundle = make_bundle(RUNTIME, "/attack", "eat", "24", "30", memory_bytes=32 * MIB)
    hostile(bundle, daemon, "squeezed", slow)
    began = time.monotonic()
    started(bundle)
    outcome = daemon.outcome(bundle.id)["outcome"]
    assert time.monotonic() - began < 20
    assert outcome["state"] in ("done", "partial", "over-budget", "deadline", "failed"), outcome
    stop(bundle)
    assert "alive mib 24" in bundle.output
    assert daemon.alive() and daemon.status()["jobs"]["running"] == 0


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
