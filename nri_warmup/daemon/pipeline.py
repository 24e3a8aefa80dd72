"""THE FILE TO READ FIRST: what happens to one container, from the runtime's event to the outcome.

    CreateContainer  ->  decide (pure)           ->  adjustment in the reply, plan in the registry
    StartContainer   ->  reply at once           ->  a task: queue, budget, worker in the container's cgroup, outcome
    StopContainer    ->  cancel                  ->  nothing of ours holds the container's files any more
    Synchronize      ->  reply, then the same    ->  containers that started while we were away, marked late

A reply is computed from values in memory, in milliseconds; work happens after it. Whatever fails here, the container
starts. The rooms know nothing of each other; only this module sees both sides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from nri_warmup.daemon import logs
from nri_warmup.daemon.hookhealth import HookHealth
from nri_warmup.daemon.programs import ProgramHealth
from nri_warmup.daemon.registry import Entry, Registry, WarmedLog, bounded, slim
from nri_warmup.daemon.startgate import StartGate
from nri_warmup.daemon.warmup import Warmer
from nri_warmup.model.lifecycle import Container, ContainerState, EventKind, LifecycleEvent, Pod, Runtime
from nri_warmup.model.node import NodeState
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.model.plan import Adjustment, ReasonKind, WarmupPlan
from nri_warmup.model.profile import Config, Gate
from nri_warmup.observe.metrics import Registry as Metrics
from nri_warmup.policy.decide import decide
from nri_warmup.policy.interest import interest_tokens

_BEGINS = frozenset({EventKind.POST_CREATE_CONTAINER, EventKind.START_CONTAINER, EventKind.POST_START_CONTAINER})
_TOLD = frozenset({ReasonKind.CUT, ReasonKind.IGNORED})
"""Reasons that the workload's author has to hear of. The others are in ``status``."""
_SETTLED = frozenset({OutcomeState.DONE, OutcomeState.PARTIAL, OutcomeState.OVER_BUDGET, OutcomeState.OBSERVED})
"""What trying again after a restart would not better. Whatever was interrupted or failed is tried again."""
_ALIVE = frozenset({ContainerState.CREATED, ContainerState.RUNNING, ContainerState.PAUSED, ContainerState.UNKNOWN})


class Pipeline:
    """Implements ``nri.client.Handler``. Owns the registry; asks policy; hands plans to the warmer."""

    def __init__(
        self,
        *,
        config: Config,
        node: NodeState,
        warmer: Warmer,
        metrics: Metrics,
        warmed: WarmedLog,
        hooks: HookHealth | None = None,
        programs: ProgramHealth | None = None,
        on_config_text: Callable[[str], Config | None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry = Registry()
        self.runtime = Runtime()
        self.connected = False
        self._warmer = warmer
        self._metrics = metrics
        self._warmed = warmed
        self._hooks = hooks
        self._programs = programs
        self._start_gate = StartGate(clock)
        self._on_config_text = on_config_text
        self._clock = clock
        self.use_node(node)
        self.use_config(config)

    def use_config(self, config: Config) -> None:
        """From the next event on; plans already made stay as they were made."""
        self.config = config
        self._interest = interest_tokens(config)
        self._warmer.use_limits(config)

    def use_node(self, node: NodeState) -> None:
        self._node = node
        self._hopeful = replace(node, hook_usable=True, hook_path="/", exec_launcher="/", exec_reason="")

    def node_now(self, *, in_hook: bool = False) -> NodeState:
        """What is known of the host, with what may be different at every decision."""
        node = self._hooks.overlay(self._node) if self._hooks is not None else self._node
        if self._programs is not None:
            node = self._programs.overlay(node, self.config, self._hooks.veto if self._hooks is not None else "")
        return replace(node, hook_running=in_hook, start_gate_left_s=self._start_gate.left_s())

    # -- what the runtime's side asks ------------------------------------------------------------------------------

    def interest(self) -> tuple[frozenset[bytes], ...]:
        return self._interest

    def is_tracked(self, container_id: str) -> bool:
        return container_id in self.registry

    def is_tracked_pod(self, pod_id: str) -> bool:
        return self.registry.has_pod(pod_id)

    def on_config(self, text: str) -> None:
        if text and (config := self._on_config_text(text)) is not None:
            self.use_config(config)

    def on_connected(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.connected = True
        self._metrics.set("nri_warmup_connected", 1)
        self._metrics.clear("nri_warmup_runtime_info")
        self._metrics.set("nri_warmup_runtime_info", 1, name=runtime.name, version=runtime.version)
        if self._hooks is not None:
            self._hooks.runtime_connected(runtime)
        logs.info(
            "registered",
            runtime=runtime.name,
            version=runtime.version,
            nri=".".join(map(str, runtime.nri_version)),
            request_timeout_s=runtime.request_timeout_s,
        )

    def on_disconnected(self, reason: str) -> None:
        self.connected = False
        self._metrics.set("nri_warmup_connected", 0)
        self._metrics.inc("nri_warmup_disconnects_total")
        logs.warning("connection to the runtime lost", reason=reason)

    def on_skipped(self, kind: EventKind) -> None:
        self._metrics.inc("nri_warmup_events_total", kind=kind.value, decoded="false")

    def on_failed(self, kind: EventKind) -> None:
        self._metrics.inc("nri_warmup_handler_errors_total", kind=kind.value)

    def on_create(self, event: LifecycleEvent) -> Adjustment:
        assert event.container is not None
        started = self._clock()
        entry = self._plan(event.pod, event.container)
        entry.decided_in_s = self._clock() - started
        return entry.plan.adjustment

    def on_event(self, event: LifecycleEvent) -> Awaitable[None] | None:
        self._metrics.inc("nri_warmup_events_total", kind=event.kind.value, decoded="true")
        if event.kind in (EventKind.STOP_POD_SANDBOX, EventKind.REMOVE_POD_SANDBOX):
            for member in self.registry.of_pod(event.pod.id):
                self._leave(member, removed=event.kind is EventKind.REMOVE_POD_SANDBOX)
            return None
        container = event.container
        if container is None:
            return None
        entry = self.registry.get(container.id)
        if event.kind in (EventKind.STOP_CONTAINER, EventKind.REMOVE_CONTAINER):
            if entry is not None:
                self._leave(entry, removed=event.kind is EventKind.REMOVE_CONTAINER)
            return None
        if event.kind is EventKind.POST_CREATE_CONTAINER and entry is not None:
            self._created(entry)
        if event.kind in _BEGINS and container.pid > 0:
            if entry is None:
                entry = self._plan(event.pod, container)
                if not entry.plan.is_empty:
                    self._missed(entry)
            self._begin(entry, container)
            if event.kind is EventKind.START_CONTAINER and entry.plan.gate is Gate.START and entry.task is not None:
                return self._hold_start(entry, entry.task)
        return None

    def on_synchronize(self, containers: Sequence[tuple[Pod, Container]], totals: tuple[int, int]) -> None:
        self._metrics.inc("nri_warmup_events_total", kind=EventKind.SYNCHRONIZE.value, decoded="true")
        alive = {container.id for _, container in containers}
        for entry in self.registry:
            if entry.container.id not in alive and not entry.by_hook:
                self._leave(entry, removed=True)
        self._warmed.retain(alive)
        for pod, container in containers:
            if container.state in _ALIVE:
                try:
                    self._found(pod, container)
                except Exception:
                    self.on_failed(EventKind.SYNCHRONIZE)
                    logs.LOG.exception("a container found at Synchronize is left as it is")
        logs.info("synchronized", pods=totals[0], containers=totals[1], of_interest=len(containers))

    def _found(self, pod: Pod, container: Container) -> None:
        """A container that Synchronize lists: what of its life was missed is made up for, late."""
        entry = self.registry.get(container.id)
        if entry is None:
            entry = self._plan(pod, container)
            if not entry.plan.is_empty:
                entry.state = self._warmed.state(container.id)
        if not entry.plan.is_empty and entry.began_s is None and entry.state is None and container.pid > 0:
            self._missed(entry)
            self._begin(entry, container)

    # -- what happens to one container -----------------------------------------------------------------------------

    def _plan(self, pod: Pod, container: Container, *, in_hook: bool = False) -> Entry:
        plan = self._decide(pod, container, in_hook=in_hook)
        entry = Entry(pod=pod, container=container, plan=plan, by_hook=in_hook)
        if plan.is_empty:
            entry.state = OutcomeState.SKIPPED
            self.registry.note(entry)
        else:
            self.registry.add(entry)
        _soon(self._note_plan, entry)
        return entry

    def _decide(self, pod: Pod, container: Container, *, in_hook: bool) -> WarmupPlan:
        """The host is looked at anew only for a plan that would hold the entrypoint or run a program before it."""
        if not in_hook:
            plan = decide(pod, container, self.config, self.runtime, self._hopeful)
            if plan.gate is Gate.NONE and not plan.adjustment.mounts:
                return plan
        return decide(pod, container, self.config, self.runtime, self.node_now(in_hook=in_hook))

    def _note_plan(self, entry: Entry) -> None:
        slim(entry)
        if entry.decided_in_s is not None:
            self._metrics.inc("nri_warmup_events_total", kind=EventKind.CREATE_CONTAINER.value, decoded="true")
            self._metrics.observe("nri_warmup_create_reply_seconds", entry.decided_in_s)
        plan = entry.plan
        self._metrics.inc("nri_warmup_plans_total", profile=plan.profile or "", gate=plan.gate.value)
        for reason in plan.reasons:
            self._metrics.inc("nri_warmup_reasons_total", kind=reason.kind.value, code=reason.code)
            if reason.code == "bad-annotation":
                self._metrics.inc("nri_warmup_complaints_total")
        self._metrics.set("nri_warmup_containers_tracked", len(self.registry))
        told = any(reason.kind in _TOLD for reason in plan.reasons)
        if told or logs.LOG.isEnabledFor(logging.DEBUG):
            write, message = logs.info if told else logs.debug, "nothing to do" if plan.is_empty else "planned"
            _log_entry(write, message, entry, why="; ".join(map(str, plan.reasons)))

    def _missed(self, entry: Entry) -> None:
        entry.late = True
        self._metrics.inc("nri_warmup_missed_total")

    def plan_in_hook(self, pod: Pod, container: Container) -> Entry:
        """A container that only our OCI hook told us of."""
        self._metrics.inc("nri_warmup_events_total", kind=EventKind.CREATE_RUNTIME.value, decoded="true")
        return self._plan(pod, container, in_hook=True)

    def begin_in_hook(self, entry: Entry, pid: int, rootfs: str) -> None:
        """Open the window before the container has pivoted into ``rootfs``; the StartContainer event finds it open."""
        self._begin(entry, replace(entry.container, pid=pid), chroot=rootfs)

    def gone(self, entry: Entry) -> None:
        """The process of a container that no runtime reports on has ended."""
        if self.registry.get(entry.container.id) is entry:
            self._leave(entry, removed=True)

    def _created(self, entry: Entry) -> None:
        if not entry.created and entry.plan.adjustment.hooks and self._hooks is not None:
            self._hooks.created()
        entry.created = True

    async def _hold_start(self, entry: Entry, task: asyncio.Task[Outcome]) -> None:
        began = self._clock()
        if not await self._start_gate.hold(task, entry.plan.hold_s):
            _log_entry(logs.info, "StartContainer let go before all was warm", entry)
        self._metrics.inc("nri_warmup_start_hold_seconds_total", self._clock() - began)

    def _begin(self, entry: Entry, container: Container, *, chroot: str = "") -> None:
        """Open the container's window, once: the event that first carries a pid wins."""
        if entry.plan.is_empty or entry.began_s is not None or entry.state is not None:
            return
        entry.began_s = self._clock()
        entry.state = OutcomeState.QUEUED
        entry.container = replace(entry.container, pid=container.pid)
        entry.task = asyncio.get_running_loop().create_task(
            self._run(entry, chroot), name=f"warm-{entry.container.id[:12]}"
        )

    async def _run(self, entry: Entry, chroot: str) -> Outcome:
        try:
            outcome = await self._warmer.warm(entry, chroot=chroot)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logs.LOG.exception("warm-up failed")
            outcome = Outcome(state=OutcomeState.FAILED, reason=f"{type(error).__name__}: {error}")
        self._finish(entry, outcome)
        return outcome

    def _finish(self, entry: Entry, outcome: Outcome) -> None:
        began = entry.began_s if entry.began_s is not None else self._clock()
        outcome = replace(bounded(outcome), late=entry.late, seconds=self._clock() - began)
        entry.outcome, entry.state = outcome, outcome.state
        metrics = self._metrics
        metrics.inc(
            "nri_warmup_warmups_total",
            outcome=outcome.state.value,
            profile=entry.plan.profile or "",
            late="true" if entry.late else "false",
        )
        metrics.observe("nri_warmup_warmup_seconds", outcome.seconds)
        metrics.inc("nri_warmup_wanted_bytes_total", outcome.wanted_bytes)
        metrics.inc("nri_warmup_read_bytes_total", outcome.read_bytes)
        metrics.inc("nri_warmup_owned_bytes_total", outcome.owned_bytes or 0)
        if outcome.state in _SETTLED and entry.container.id in self.registry:
            self._warmed.add(entry.container.id, outcome.state)
        _log_entry(
            logs.info,
            "warm-up ended",
            entry,
            outcome=outcome.state.value,
            reason=outcome.reason or "-",
            seconds=round(outcome.seconds, 3),
            coverage=outcome.coverage,
            read_bytes=outcome.read_bytes,
            owned=outcome.owned,
            late=entry.late,
        )

    def _leave(self, entry: Entry, *, removed: bool) -> None:
        """The container is stopping: let go of everything of it within a second."""
        if entry.task is not None and not entry.task.done():
            self._warmer.cancel(entry)
        if entry.state is None:
            entry.state = OutcomeState.CONTAINER_GONE
            if entry.plan.adjustment.hooks and not entry.created and not entry.late and self._hooks is not None:
                self._hooks.undone()
        if removed:
            self.registry.remove(entry.container.id)
            self._warmed.discard(entry.container.id)
            self._warmer.forget(entry)
            self._metrics.set("nri_warmup_containers_tracked", len(self.registry))

    async def close(self) -> None:
        """Cancel what runs and wait for it; containers go on."""
        tasks = [entry.task for entry in self.registry if entry.task is not None and not entry.task.done()]
        for entry in self.registry:
            self._warmer.cancel(entry)
        if tasks:
            await asyncio.wait(tasks, timeout=3.0)


def _soon(call: Callable[[Entry], None], entry: Entry) -> None:
    """After the reply, which is written before the event loop's present callback returns; at once without a loop."""
    try:
        asyncio.get_running_loop().call_soon(call, entry)
    except RuntimeError:
        call(entry)


def _log_entry(write: Callable[..., None], message: str, entry: Entry, **fields: object) -> None:
    write(
        message,
        container=entry.container.id[:12],
        pod=f"{entry.pod.namespace}/{entry.pod.name}",
        name=entry.container.name,
        profile=entry.plan.profile or "-",
        **fields,
    )
