"""The hook's operation: the real hook over a real control socket; procfs is a folder, the pid a child of ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.config import load_config
from nri_warmup.daemon.control import ControlServer
from nri_warmup.daemon.gate import GateKeeper
from nri_warmup.daemon.pipeline import Pipeline
from nri_warmup.daemon.registry import WarmedLog
from nri_warmup.kernel.root import Root
from nri_warmup.model.lifecycle import Container, EventKind, LifecycleEvent, Pod
from nri_warmup.model.node import NodeState
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.observe.metrics import Registry as Metrics
from tests.unit.daemon.test_pipeline import RecordingWarmer

HOOK = Path(__file__).resolve().parents[3] / "hooks" / "nri-warmup-hook"
ID = "c0ffee"
CONFIG = load_config(
    {
        "profiles": {
            "held": {"files": ["/models/**"], "gate": "hook", "hold": "20s"},
            "brief": {"files": ["/models/**"], "gate": "hook", "hold": "200ms"},
            "strict": {"files": ["/models/**"], "gate": "hook", "on_error": "closed"},
            "beside": {"files": ["/models/**"]},
        }
    },
    source="test",
)
MOUNT = "21 20 8:1 / {} rw - ext4 /dev/x rw\n"


class EnteringWarmer(RecordingWarmer):
    """Is inside the container at once."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self.chroots: list[str] = []

    async def warm(self, entry: Any, *, chroot: str = "") -> Outcome:
        self.chroots.append(chroot)
        entry.progress = Progress(wanted_bytes=100, resident_bytes=10)
        entry.entered.set()
        return await super().warm(entry)


class Host:
    """A procfs in a folder, a bundle, and a child of ours as the container's process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bundle = "/run/bundles/c"
        self.rootfs = "/run/bundles/c/rootfs"
        self.process = subprocess.Popen(["sleep", "1000"])
        self.pid = self.process.pid
        self.metrics = Metrics()
        self.warmer = EnteringWarmer(self.metrics)
        self.config: dict[str, Any] = {
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/models", "source": "/srv/models", "type": "bind"}],
        }
        self.write("proc/self/mountinfo", "30 20 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
        self.write(f"proc/{os.getpid()}/mountinfo", MOUNT.format("/") + MOUNT.format("/proc"))
        self.write(f"proc/{self.pid}/cgroup", f"0::/pods/{ID}\n")
        self.mounted("/", "/proc", self.rootfs, f"{self.rootfs}/proc")

    def write(self, name: str, text: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def mounted(self, *points: str) -> None:
        self.write(f"proc/{self.pid}/mountinfo", "".join(MOUNT.format(point) for point in points))

    def state(self, **changes: Any) -> dict[str, Any]:
        return {
            "ociVersion": "1.0.2",
            "id": ID,
            "status": "creating",
            "pid": self.pid,
            "bundle": self.bundle,
            **changes,
        }

    def annotate(self, profile: str) -> None:
        self.config["annotations"] = {"profile.nri-warmup.dev": profile}

    def pipeline(self) -> Pipeline:
        return Pipeline(
            config=CONFIG, node=NodeState(), warmer=self.warmer, metrics=self.metrics, warmed=WarmedLog(None)
        )

    def results(self) -> dict[str, float]:
        names = (
            "held",
            "beside",
            "closed",
            "refused",
            "gone",
            "unknown",
            "no-plan",
            "no-rootfs",
            "failed",
            "hook-gone",
        )
        values = {name: self.metrics.value("nri_warmup_gates_total", result=name) for name in names}
        return {name: value for name, value in values.items() if value}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def ask(host: Host, state: object, *args: str, pipeline: Pipeline | None = None, during: Any = None) -> tuple[int, str]:
    """Run the hook with --closed against the operation. Gives its status and what it says."""
    host.write(f"proc/{host.pid}/root{host.bundle}/config.json", json.dumps(host.config))
    pipeline = pipeline or host.pipeline()

    async def main() -> tuple[int, str]:
        path = str(host.path / "control.sock")
        keeper = GateKeeper(pipeline, Root(host.path), host.metrics)
        server = ControlServer(path, {"gate": keeper.operation})
        await server.start()
        hook = await asyncio.create_subprocess_exec(
            str(HOOK),
            *("--socket", path, "--deadline", "30", "--closed", *args),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert hook.stdin is not None
        hook.stdin.write(state if isinstance(state, bytes) else json.dumps(state).encode())
        hook.stdin.close()
        if during is not None:
            await during(pipeline, hook)
        _, err = await hook.communicate()
        await server.close()
        assert hook.returncode is not None
        return hook.returncode, err.decode()

    return asyncio.run(main())


def test_container_that_only_the_hook_tells_of_is_planned_from_its_bundle(host: Host) -> None:
    host.annotate("held")
    assert ask(host, host.state()) == (0, "")
    assert (host.warmer.warmed, host.warmer.chroots) == ([ID], [host.rootfs])
    assert host.results() == {"held": 1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pid": None}, "no pid"),
        ({"pid": 0}, "no pid"),
        ({"pid": 1}, "no pid"),
        ({"pid": "77"}, "no pid"),
        ({"pid": True}, "no pid"),
        ({"pid": 1 << 40}, "gone"),
        ({"id": ""}, "no usable container id"),
        ({"id": "../x"}, "no usable container id"),
        ({"id": "another"}, "in no cgroup of this container"),
        ({"bundle": "/"}, "bundle cannot be read"),
        ({"bundle": "/nowhere"}, "bundle cannot be read"),
        ({"bundle": None}, "bundle cannot be read"),
    ],
)
def test_states_that_name_no_container_of_this_host(host: Host, changes: dict[str, Any], says: str) -> None:
    host.annotate("held")
    code, err = ask(host, host.state(**changes))
    assert code == 1 and says in err
    assert host.warmer.warmed == []


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"nonsense", b'{"id":"x"} trailing', b"\xff\xfe", b"[" * 100_000])
def test_states_that_are_none(host: Host, raw: bytes) -> None:
    code, err = ask(host, raw)
    assert code == 1 and err.count("\n") == 1
    assert host.warmer.warmed == []


@pytest.mark.parametrize(
    "config", [[], {"root": 3}, {"root": {"path": "/"}}, {"annotations": {"profile.nri-warmup.dev": 1}}]
)
def test_configurations_of_any_shape(host: Host, config: Any) -> None:
    host.config = config
    assert ask(host, host.state())[0] in (0, 1)
    assert host.results().keys() <= {"no-plan", "no-rootfs"}


def test_nothing_to_do_holds_nothing(host: Host) -> None:
    assert ask(host, host.state()) == (0, "")
    assert host.results() == {"no-plan": 1}


def test_crun_with_a_broken_bundle_names_the_root_itself(host: Host) -> None:
    """The runtime's NRI told of the container before; the bundle is not needed then."""
    pipeline = host.pipeline()
    plan_by_nri(pipeline, "held")
    assert ask(host, host.state(bundle="/", root=host.rootfs), pipeline=pipeline) == (0, "")
    assert host.warmer.chroots == [host.rootfs]


def test_without_bundle_and_root_the_only_rootfs_of_its_own(host: Host) -> None:
    pipeline = host.pipeline()
    plan_by_nri(pipeline, "held")
    host.mounted("/", "/proc", host.rootfs, f"{host.rootfs}/proc", f"{host.rootfs}/chroot/proc")
    assert ask(host, host.state(bundle="/"), pipeline=pipeline) == (0, "")
    assert host.warmer.chroots == [host.rootfs]


def test_rootfs_that_is_not_mounted_is_not_entered(host: Host) -> None:
    host.annotate("held")
    host.mounted("/", "/proc")
    code, err = ask(host, host.state())
    assert code == 1 and "rootfs is not mounted" in err
    assert host.warmer.warmed == []
    assert host.results() == {"no-rootfs": 1}


def test_id_of_the_hook_counts_and_not_that_of_the_state(host: Host) -> None:
    host.annotate("held")
    assert ask(host, host.state(id="another"), "--id", ID) == (0, "")
    assert host.warmer.warmed == [ID]


def test_start_event_after_the_hook_warms_no_second_time(host: Host) -> None:
    pipeline = host.pipeline()
    plan_by_nri(pipeline, "held")
    assert ask(host, host.state(), pipeline=pipeline) == (0, "")
    event = nri_event(EventKind.START_CONTAINER, "held", pid=host.pid)
    assert pipeline.on_event(event) is None
    assert host.warmer.warmed == [ID]


def test_two_hooks_for_one_container(host: Host) -> None:
    """NRI and hooks.d on one host: the second waits like the first, and warms nothing."""
    pipeline = host.pipeline()
    plan_by_nri(pipeline, "held")

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        path = str(host.path / "control.sock")
        second = await asyncio.create_subprocess_exec(str(HOOK), "--socket", path, "--closed", stdin=subprocess.PIPE)
        await second.communicate(json.dumps(host.state()).encode())
        assert second.returncode == 0

    assert ask(host, host.state(), pipeline=pipeline, during=during) == (0, "")
    assert host.warmer.warmed == [ID]
    assert host.results() == {"held": 2}


@pytest.mark.parametrize(("profile", "least_s"), [("brief", 0.2), ("beside", 0.0)])
def test_hold_is_bounded(host: Host, profile: str, least_s: float) -> None:
    host.annotate(profile)
    loop_time: list[float] = []

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        loop_time.append(loop.time())
        await hook.wait()
        loop_time.append(loop.time())
        assert host.warmer.result is not None
        host.warmer.result.set_result(Outcome(state=OutcomeState.DONE))

    loop = asyncio.new_event_loop()
    host.warmer.result = loop.create_future()
    loop.close()
    assert held(host, during) == (0, "")
    assert least_s <= loop_time[1] - loop_time[0] < 10
    assert host.results() == {"beside": 1}


def held(host: Host, during: Any) -> tuple[int, str]:
    """Like ``ask``, with a warm-up that ends when the test says so."""

    async def prepared(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        await during(pipeline, hook)

    host.warmer.result = None
    pipeline = host.pipeline()
    original = host.warmer.warm

    async def warm(entry: Any, *, chroot: str = "") -> Outcome:
        if host.warmer.result is None:
            host.warmer.result = asyncio.get_running_loop().create_future()
        return await original(entry, chroot=chroot)

    host.warmer.warm = warm  # type: ignore[method-assign]
    return ask(host, host.state(), pipeline=pipeline, during=prepared)


async def until(question: Any) -> None:
    async with asyncio.timeout(10):
        while not question():
            await asyncio.sleep(0.01)


def test_stop_while_it_is_held_lets_go_at_once(host: Host) -> None:
    host.annotate("held")

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        await until(lambda: host.warmer.warmed)
        pipeline.on_event(nri_event(EventKind.STOP_POD_SANDBOX, "held", pod_id=ID))
        async with asyncio.timeout(5):
            await hook.wait()

    assert held(host, during) == (0, "")
    assert host.warmer.cancelled == [ID]


def test_end_of_its_process_is_the_end_of_a_container_that_no_runtime_reports(host: Host) -> None:
    host.annotate("held")

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        await until(lambda: host.warmer.warmed)
        host.process.kill()
        async with asyncio.timeout(5):
            await hook.wait()
        assert len(pipeline.registry) == 0

    assert held(host, during) == (0, "")
    assert host.warmer.forgotten == [ID]


def test_hook_killed_while_it_is_held(host: Host) -> None:
    """The warm-up goes on: the runtime may start the container all the same."""
    host.annotate("held")

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        await until(lambda: host.warmer.warmed)
        hook.kill()
        await hook.wait()
        await until(lambda: host.results() == {"hook-gone": 1})
        assert host.warmer.cancelled == []
        assert host.warmer.result is not None
        host.warmer.result.set_result(Outcome(state=OutcomeState.DONE))
        await until(lambda: next(iter(pipeline.registry)).outcome is not None)

    assert held(host, during)[0] == -9


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (OutcomeState.DONE, 0),
        (OutcomeState.PARTIAL, 1),
        (OutcomeState.FAILED, 1),
        (OutcomeState.OVER_BUDGET, 1),
        (OutcomeState.DEADLINE, 1),
        (OutcomeState.SKIPPED, 0),
    ],
)
def test_what_a_closed_profile_calls_a_failure(host: Host, state: OutcomeState, code: int) -> None:
    host.annotate("strict")

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        await until(lambda: host.warmer.result is not None)
        assert host.warmer.result is not None
        host.warmer.result.set_result(Outcome(state=state, reason="as it is"))

    ended, err = held(host, during)
    assert ended == code
    assert err == ("" if code == 0 else f"nri-warmup: not started, on_error is closed: {state.value}: as it is\n")


def test_open_profile_lets_every_container_go(host: Host) -> None:
    host.annotate("held")

    async def during(pipeline: Pipeline, hook: asyncio.subprocess.Process) -> None:
        await until(lambda: host.warmer.result is not None)
        assert host.warmer.result is not None
        host.warmer.result.set_result(Outcome(state=OutcomeState.FAILED, reason="disk on fire"))

    assert held(host, during) == (0, "")


def nri_event(kind: EventKind, profile: str, *, pid: int = 0, pod_id: str = "pod") -> LifecycleEvent:
    annotations = (("profile.nri-warmup.dev", profile),)
    pod = Pod(id=pod_id, name="web", namespace="default", annotations=annotations)
    return LifecycleEvent(kind=kind, pod=pod, container=Container(id=ID, pod_id=pod_id, name="server", pid=pid))


def plan_by_nri(pipeline: Pipeline, profile: str) -> None:
    """As CreateContainer does it, where the hook is not known to be usable: the plan is there, the gate is not."""
    pipeline.use_node(NodeState(hook_usable=True, hook_path=str(HOOK)))
    adjustment = pipeline.on_create(nri_event(EventKind.CREATE_CONTAINER, profile))
    assert adjustment.hooks
