"""The pipeline's handlers, fed with events: decisions without touching the kernel, windows, ends, misses.

The injector is replaced by one that records jobs; the kernel root raises on any access, so a handler that reads a file
before it answers fails here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.config import load_config
from nri_warmup.daemon.hookhealth import HookHealth
from nri_warmup.daemon.pipeline import Pipeline
from nri_warmup.daemon.registry import WarmedLog
from nri_warmup.daemon.warmup import Warmer
from nri_warmup.kernel.root import Root
from nri_warmup.model.lifecycle import Container, ContainerState, EventKind, LifecycleEvent, Mount, Pod, Runtime
from nri_warmup.model.node import NodeState
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.observe.metrics import Registry as Metrics

CONFIG = load_config(
    {
        "profiles": {"llm": {"files": ["/models/**"]}},
        "selectors": [{"profile": "llm", "matchLabels": {"app": "llm"}}],
    },
    source="test",
)
POD = Pod(id="pod1", name="web", namespace="default", labels=(("app", "llm"),))
CONTAINER = Container(
    id="c" * 64, pod_id="pod1", name="server", mounts=(Mount(destination="/models", source="/srv/m"),)
)


class ForbiddenRoot(Root):
    """A host whose files must not be looked at."""

    def resolve(self, rel: str) -> str:
        raise AssertionError(f"a handler touched {rel}")


class RecordingWarmer(Warmer):
    """Remembers who was to be warmed; an outcome is given when the test says so."""

    def __init__(self, metrics: Metrics) -> None:
        self.warmed: list[str] = []
        self.cancelled: list[str] = []
        self.forgotten: list[str] = []
        self.result: asyncio.Future[Outcome] | None = None
        super().__init__(injector=None, root=ForbiddenRoot("/"), metrics=metrics)  # type: ignore[arg-type]

    async def warm(self, entry: Any, **_: Any) -> Outcome:
        self.warmed.append(entry.container.id)
        if self.result is not None:
            return await self.result
        return Outcome(state=OutcomeState.DONE, wanted_bytes=10, resident_bytes=10, read_bytes=4)

    def cancel(self, entry: Any) -> None:
        self.cancelled.append(entry.container.id)
        if self.result is not None and not self.result.done():
            self.result.set_result(Outcome(state=OutcomeState.CANCELLED))

    def forget(self, entry: Any) -> None:
        self.forgotten.append(entry.container.id)


class Bench:
    def __init__(self, warmed: Path | None = None) -> None:
        self.metrics = Metrics()
        self.warmer = RecordingWarmer(self.metrics)
        self.pipeline = Pipeline(
            config=CONFIG,
            node=NodeState(),
            warmer=self.warmer,
            metrics=self.metrics,
            warmed=WarmedLog(str(warmed) if warmed else None),
        )
        self.pipeline.on_connected(Runtime(name="containerd", version="2.1.9", nri_version=(0, 8)))

    def event(self, kind: EventKind, *, pid: int = 0, container: Container | None = CONTAINER, pod: Pod = POD) -> None:
        given = replace(container, pid=pid) if container is not None else None
        assert self.pipeline.on_event(LifecycleEvent(kind=kind, pod=pod, container=given)) is None

    def create(self, container: Container = CONTAINER, pod: Pod = POD) -> Any:
        return self.pipeline.on_create(LifecycleEvent(kind=EventKind.CREATE_CONTAINER, pod=pod, container=container))

    async def settle(self) -> None:
        tasks = [e.task for e in self.pipeline.registry if e.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def running(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapper() -> None:
        async def main() -> None:
            await test(Bench())

        asyncio.run(main())

    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    return wrapper


@running
async def test_a_labelled_container_is_planned_at_create_and_warmed_at_start(bench: Bench) -> None:
    adjustment = bench.create()
    assert dict(adjustment.annotations) == {"planned.nri-warmup.dev": "llm"}
    assert bench.warmer.warmed == []
    bench.event(EventKind.START_CONTAINER, pid=77)
    await bench.settle()
    entry = bench.pipeline.registry.get(CONTAINER.id)
    assert entry is not None and entry.state is OutcomeState.DONE and not entry.late
    assert entry.container.pid == 77
    assert bench.warmer.warmed == [CONTAINER.id]
    assert bench.metrics.value("nri_warmup_warmups_total", outcome="done", profile="llm", late="false") == 1
    assert bench.metrics.value("nri_warmup_read_bytes_total") == 4


@running
async def test_the_window_opens_once_with_the_first_pid(bench: Bench) -> None:
    """CRI-O gives a pid at PostCreateContainer; containerd at StartContainer; PostStart comes to both."""
    bench.create()
    bench.event(EventKind.POST_CREATE_CONTAINER, pid=0)
    assert bench.warmer.warmed == []
    bench.event(EventKind.POST_CREATE_CONTAINER, pid=9)
    bench.event(EventKind.START_CONTAINER, pid=9)
    bench.event(EventKind.POST_START_CONTAINER, pid=9)
    await bench.settle()
    assert bench.warmer.warmed == [CONTAINER.id]


@running
async def test_an_unlabelled_container_gets_an_empty_adjustment_and_is_not_tracked(bench: Bench) -> None:
    assert bench.create(pod=replace(POD, labels=())).is_empty
    assert not bench.pipeline.is_tracked(CONTAINER.id)
    bench.event(EventKind.START_CONTAINER, pid=5, pod=replace(POD, labels=()))
    assert bench.warmer.warmed == []


@running
async def test_stop_cancels_and_remove_forgets(bench: Bench) -> None:
    bench.warmer.result = asyncio.get_running_loop().create_future()
    bench.create()
    bench.event(EventKind.START_CONTAINER, pid=5)
    await asyncio.sleep(0)
    task = bench.pipeline.registry.get(CONTAINER.id).task  # type: ignore[union-attr]
    bench.event(EventKind.STOP_CONTAINER, pid=5)
    assert bench.warmer.cancelled == [CONTAINER.id]
    assert (await task).state is OutcomeState.CANCELLED
    bench.event(EventKind.REMOVE_CONTAINER)
    assert bench.warmer.forgotten == [CONTAINER.id]
    assert not bench.pipeline.is_tracked(CONTAINER.id)
    assert not bench.pipeline.is_tracked_pod(POD.id)


@running
async def test_a_pods_end_ends_all_its_containers(bench: Bench) -> None:
    second = replace(CONTAINER, id="d" * 64, name="other")
    bench.create()
    bench.create(second)
    bench.event(EventKind.STOP_POD_SANDBOX, container=None)
    bench.event(EventKind.REMOVE_POD_SANDBOX, container=None)
    assert len(bench.pipeline.registry) == 0
    assert set(bench.warmer.forgotten) == {CONTAINER.id, second.id}


@running
async def test_stop_and_remove_of_unknown_containers_are_normal(bench: Bench) -> None:
    for kind in (EventKind.STOP_CONTAINER, EventKind.REMOVE_CONTAINER, EventKind.STOP_POD_SANDBOX):
        bench.event(kind, pid=4)
    assert len(bench.pipeline.registry) == 0


@running
async def test_a_start_whose_create_was_missed_is_warmed_late(bench: Bench) -> None:
    bench.event(EventKind.START_CONTAINER, pid=5)
    await bench.settle()
    assert bench.warmer.warmed == [CONTAINER.id]
    assert bench.metrics.value("nri_warmup_missed_total") == 1
    assert bench.pipeline.registry.get(CONTAINER.id).late  # type: ignore[union-attr]


@running
async def test_synchronize_warms_late_what_runs_and_nothing_else(bench: Bench) -> None:
    alive = replace(CONTAINER, pid=5, state=ContainerState.RUNNING)
    dead = replace(CONTAINER, id="d" * 64, state=ContainerState.STOPPED)
    plain = replace(CONTAINER, id="e" * 64, pod_id="pod2", pid=6, state=ContainerState.RUNNING)
    bench.pipeline.on_synchronize([(POD, alive), (POD, dead), (replace(POD, id="pod2", labels=()), plain)], (2, 3))
    await bench.settle()
    assert bench.warmer.warmed == [CONTAINER.id]
    assert bench.metrics.value("nri_warmup_missed_total") == 1


@running
async def test_synchronize_takes_away_what_is_gone(bench: Bench) -> None:
    bench.create()
    bench.pipeline.on_synchronize([], (0, 0))
    assert bench.warmer.forgotten == [CONTAINER.id]


def test_a_restarted_daemon_does_not_read_again(tmp_path: Path) -> None:
    async def main() -> None:
        first = Bench(tmp_path / "warmed")
        first.create()
        first.event(EventKind.START_CONTAINER, pid=5)
        await first.settle()
        second = Bench(tmp_path / "warmed")
        alive = replace(CONTAINER, pid=5, state=ContainerState.RUNNING)
        second.pipeline.on_synchronize([(POD, alive)], (1, 1))
        await second.settle()
        assert second.warmer.warmed == []
        entry = second.pipeline.registry.get(CONTAINER.id)
        assert entry is not None and entry.state is OutcomeState.DONE

    asyncio.run(main())


@pytest.mark.parametrize("state", [OutcomeState.CANCELLED, OutcomeState.FAILED, OutcomeState.DEADLINE])
def test_what_was_interrupted_or_failed_is_tried_again_after_a_restart(tmp_path: Path, state: OutcomeState) -> None:
    async def main() -> None:
        first = Bench(tmp_path / "warmed")
        first.warmer.result = asyncio.get_running_loop().create_future()
        first.warmer.result.set_result(Outcome(state=state))
        first.create()
        first.event(EventKind.START_CONTAINER, pid=5)
        await first.settle()
        second = Bench(tmp_path / "warmed")
        alive = replace(CONTAINER, pid=5, state=ContainerState.RUNNING)
        second.pipeline.on_synchronize([(POD, alive)], (1, 1))
        await second.settle()
        assert second.warmer.warmed == [CONTAINER.id]

    asyncio.run(main())


@running
async def test_a_start_missed_between_create_and_a_reconnect_is_made_up_for(bench: Bench) -> None:
    bench.create()
    bench.pipeline.on_synchronize([(POD, replace(CONTAINER, pid=5, state=ContainerState.RUNNING))], (1, 1))
    await bench.settle()
    assert bench.warmer.warmed == [CONTAINER.id]
    assert bench.metrics.value("nri_warmup_missed_total") == 1


@running
async def test_one_container_that_breaks_does_not_end_a_synchronize(bench: Bench) -> None:
    broken = replace(CONTAINER, id="d" * 64, pid=6, state=ContainerState.RUNNING, mounts=(None,))  # type: ignore[arg-type]
    alive = replace(CONTAINER, pid=5, state=ContainerState.RUNNING)
    bench.pipeline.on_synchronize([(POD, broken), (POD, alive)], (1, 2))
    await bench.settle()
    assert bench.warmer.warmed == [CONTAINER.id]
    assert bench.metrics.value("nri_warmup_handler_errors_total", kind="synchronize") == 1


@running
async def test_a_warmer_that_fails_is_an_outcome(bench: Bench) -> None:
    bench.warmer.result = asyncio.get_running_loop().create_future()
    bench.warmer.result.set_exception(ValueError("broken"))
    bench.create()
    bench.event(EventKind.START_CONTAINER, pid=5)
    await bench.settle()
    entry = bench.pipeline.registry.get(CONTAINER.id)
    assert entry is not None and entry.state is OutcomeState.FAILED
    assert entry.outcome is not None and "broken" in entry.outcome.reason


@running
async def test_a_configuration_from_the_runtime_is_used_and_a_bad_one_is_not(bench: Bench) -> None:
    bench.pipeline.on_config("")
    assert bench.pipeline.config is CONFIG


@pytest.mark.parametrize("kind", [k for k in EventKind if k not in (EventKind.SYNCHRONIZE, EventKind.CREATE_CONTAINER)])
def test_no_handler_touches_the_kernel_before_it_answers(kind: EventKind) -> None:
    async def main() -> None:
        bench = Bench()
        bench.create()
        bench.event(kind, pid=5)
        await bench.settle()

    asyncio.run(main())


def test_a_profile_with_gate_hook_gets_the_hook_of_this_host(tmp_path: Path) -> None:
    """Decided with what is known of the hook now, not with what was hoped."""
    hook = Path(__file__).resolve().parents[3] / "hooks" / "nri-warmup-hook"
    metrics = Metrics()
    config = load_config(
        {
            "profiles": {"llm": {"files": ["/models/**"], "gate": "hook"}},
            "selectors": [{"profile": "llm", "matchLabels": {"app": "llm"}}],
        },
        source="test",
    )
    health = HookHealth(str(hook), str(tmp_path / "control.sock"))
    pipeline = Pipeline(
        config=config,
        node=NodeState(),
        warmer=RecordingWarmer(metrics),
        metrics=metrics,
        warmed=WarmedLog(None),
        hooks=health,
    )
    event = LifecycleEvent(kind=EventKind.CREATE_CONTAINER, pod=POD, container=CONTAINER)
    assert pipeline.on_create(event).hooks == ()
    asyncio.run(health.check())
    (entry,) = pipeline.on_create(event).hooks
    assert entry.path == str(hook) and CONTAINER.id in entry.args
