"""One warm-up from a plan to an outcome: wait for a slot, find the target, work out the budget, hand a job over."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from nri_warmup.daemon import logs
from nri_warmup.daemon.node import read_memory_levels, read_node_state
from nri_warmup.daemon.registry import Entry
from nri_warmup.errors import KernelError
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel import cgroup, process
from nri_warmup.kernel.root import Root
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.plan import WarmFiles, WarmupPlan
from nri_warmup.model.profile import Config, Mode
from nri_warmup.observe.metrics import Registry as Metrics
from nri_warmup.policy.admission import Admission, Decision
from nri_warmup.policy.memory import budget

_GONE = Outcome(state=OutcomeState.CONTAINER_GONE, reason="the container ended before its warm-up began")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to warm for. ``container_id`` empty: no membership check (a process we started ourselves).

    ``chroot`` is the rootfs below the target's mount namespace while it is not pivoted yet.
    """

    pid: int
    job_id: str
    container_id: str = ""
    chroot: str = ""


async def warm_target(
    injector: Injector,
    root: Root,
    target: Target,
    plan: WarmupPlan,
    *,
    deadline_s: float,
    node_reserve_bytes: int,
    on_progress: Callable[[Progress], None],
    reserve: Callable[[int], int] = lambda n_bytes: n_bytes,
    started_s: float | None = None,
) -> Outcome:
    """Carry out a plan's WarmFiles for one process. Every failure is an outcome; only cancellation raises.

    ``reserve`` is asked for the bytes that may be read and gives what of them is granted (a namespace's quota).
    """
    files = next((a for a in plan.actions if isinstance(a, WarmFiles)), None)
    if files is None:
        return Outcome(state=OutcomeState.SKIPPED, reason="the plan names no files")
    try:
        pidfd = process.pidfd_open(target.pid)
    except KernelError:
        return _GONE
    try:
        memberships = cgroup.read_memberships(root, target.pid)
        if target.container_id and not cgroup.belongs_to(memberships, target.container_id):
            return Outcome(
                state=OutcomeState.FAILED, reason=f"process {target.pid} is in no cgroup of this container; not entered"
            )
        node = read_node_state(root)
        found = budget(read_memory_levels(root, target.pid), node, plan.reserve_bytes, node_reserve_bytes)
        if not process.is_alive(pidfd):
            return _GONE
        wanted = files.max_bytes if found.budget_bytes is None else min(files.max_bytes, found.budget_bytes)
        observe = plan.mode is Mode.OBSERVE
        granted = wanted if observe else reserve(wanted)
        job = WarmJob(
            id=target.job_id,
            pid=target.pid,
            patterns=files.patterns,
            residency=files.residency,
            max_bytes=files.max_bytes,
            max_files=files.max_files,
            budget_bytes=granted,
            deadline_s=deadline_s,
            join_cgroup=not observe,
            chroot=target.chroot,
            enter_namespaces=True,
            readahead_bytes=node.readahead_bytes,
            measure_only=observe,
        )
        outcome = await injector.run(job, pidfd, on_progress)
        if outcome.state is OutcomeState.OVER_BUDGET and not outcome.reason:
            reason = found.reasons[-1] if granted == wanted else f"quota of the namespace: {granted} bytes left"
            outcome = replace(outcome, reason=reason)
        seconds = outcome.seconds if started_s is None else asyncio.get_running_loop().time() - started_s
        return replace(outcome, budget_bytes=granted, seconds=seconds)
    except KernelError as error:
        return _GONE if not process.is_alive(pidfd) else Outcome(state=OutcomeState.FAILED, reason=str(error))
    finally:
        os.close(pidfd)


class Warmer:
    """The host's queue of warm-ups. Fair between namespaces (policy/admission); one slot a job."""

    def __init__(self, *, injector: Injector, root: Root, metrics: Metrics) -> None:
        self._injector = injector
        self._root = root
        self._metrics = metrics
        self._admission = Admission()
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._node_reserve_bytes = 0

    def use_limits(self, config: Config) -> None:
        self._wake(self._admission.use_limits(config.limits))
        self._node_reserve_bytes = config.node.reserve_bytes

    async def warm(self, entry: Entry, *, chroot: str = "") -> Outcome:
        """The whole warm-up of one container; cancelled by ``cancel``, bounded by the plan's deadline."""
        job_id = entry.container.id
        deadline_s = entry.plan.deadline_s
        started = asyncio.get_running_loop().time()
        decision = self._admission.offer(job_id, entry.pod.namespace, urgent=entry.held_by_hook)
        if decision.refused:
            return Outcome(state=OutcomeState.SKIPPED, reason=decision.reason)
        try:
            if not await self._turn(job_id, decision, deadline_s):
                return Outcome(state=OutcomeState.DEADLINE, reason=f"waited {deadline_s:g} s for a slot")
            entry.state = OutcomeState.RUNNING

            def on_progress(progress: Progress) -> None:
                entry.progress = progress
                entry.entered.set()

            left = max(0.1, deadline_s - (asyncio.get_running_loop().time() - started))
            target = Target(pid=entry.container.pid, job_id=job_id, container_id=job_id, chroot=chroot)
            outcome = await warm_target(
                self._injector,
                self._root,
                target,
                entry.plan,
                deadline_s=left,
                node_reserve_bytes=self._node_reserve_bytes,
                on_progress=on_progress,
                reserve=lambda n_bytes: self._admission.reserve(job_id, n_bytes),
            )
            self._admission.charge(job_id, outcome.read_bytes)
            return outcome
        except asyncio.CancelledError:
            return Outcome(state=OutcomeState.CANCELLED, reason="the container stopped")
        finally:
            self._turns.pop(job_id, None)
            self._wake(self._admission.finish(job_id))

    async def _turn(self, job_id: str, decision: Decision, deadline_s: float) -> bool:
        if decision.start:
            return True
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[job_id] = turn
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(turn, deadline_s)
            return True
        return False

    def _wake(self, job_ids: tuple[str, ...]) -> None:
        for job_id in job_ids:
            turn = self._turns.get(job_id)
            if turn is not None and not turn.done():
                turn.set_result(None)

    def cancel(self, entry: Entry) -> None:
        """Stop what runs or waits for this container; its task ends within a second."""
        job_id = entry.container.id
        turn = self._turns.get(job_id)
        if turn is not None and not turn.done():
            turn.cancel()
        _spawn(self._injector.cancel(job_id))

    def forget(self, entry: Entry) -> None:
        """The container is gone: its bytes no longer count against its namespace's quota."""
        self._wake(self._admission.forget(entry.container.id))

    def load(self) -> tuple[int, int]:
        """(running, queued)."""
        return self._admission.running, self._admission.queued

    def update_gauges(self) -> None:
        running, queued = self.load()
        self._metrics.set("nri_warmup_jobs_running", running)
        self._metrics.set("nri_warmup_jobs_queued", queued)


_TASKS: set[asyncio.Task[None]] = set()


def _spawn(coroutine: Awaitable[None]) -> None:
    """Run beside us; a task that nobody keeps may be collected."""

    async def guarded() -> None:
        try:
            await coroutine
        except Exception as error:
            logs.warning("cancelling a warm-up failed", error=error)

    task = asyncio.get_running_loop().create_task(guarded())
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
