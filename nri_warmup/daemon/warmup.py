"""One warm-up from a plan to an outcome: wait for a slot, find the target, work out the budget, hand a job over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from nri_warmup.daemon import logs
from nri_warmup.daemon.node import read_memory_levels, read_node_state
from nri_warmup.daemon.registry import Entry
from nri_warmup.errors import KernelError
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel import cgroup, process
from nri_warmup.kernel.root import Root
from nri_warmup.model.node import MemoryLevel
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.plan import WarmFiles, WarmupPlan
from nri_warmup.model.profile import Config, Mode
from nri_warmup.observe.metrics import Registry as Metrics
from nri_warmup.policy.admission import Admission, Decision
from nri_warmup.policy.claim import STALLED_S, Claim
from nri_warmup.policy.memory import Pledge, budget

_LOOKS = 3
"""How often in the time that a job has to get on it is looked at."""
_GONE = Outcome(state=OutcomeState.CONTAINER_GONE, reason="the container ended before its warm-up began")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to warm for. ``container_id`` empty: no membership check (a process we started ourselves).

    ``group`` is whose job it is: its workers that do not die are held against it. ``chroot`` is the rootfs below the
    target's mount namespace while it is not pivoted yet.
    """

    pid: int
    job_id: str
    container_id: str = ""
    group: str = ""
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
    grant: Callable[[Sequence[MemoryLevel], int], int] = lambda levels, n_bytes: n_bytes,
    pledges: Sequence[Pledge] = (),
    started_s: float | None = None,
) -> Outcome:
    """Carry out a plan's WarmFiles for one process. Every failure is an outcome; only cancellation raises.

    ``grant`` is told where the bytes that may be read are charged, and gives what of them is granted (a namespace's
    quota). ``pledges`` are those of other warm-ups under way; nothing is awaited between looking at them and ``grant``.
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
        levels = read_memory_levels(root, target.pid)
        found = budget(levels, node, plan.reserve_bytes, node_reserve_bytes, pledges)
        if not process.is_alive(pidfd):
            return _GONE
        wanted = files.max_bytes if found.budget_bytes is None else min(files.max_bytes, found.budget_bytes)
        observe = plan.mode is Mode.OBSERVE
        granted = wanted if observe else grant(levels, wanted)
        job = WarmJob(
            id=target.job_id,
            group=target.group,
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
        if outcome.state is OutcomeState.OVER_BUDGET and (granted < wanted or wanted < files.max_bytes):
            why = found.reasons[-1] if granted == wanted else f"quota of the namespace: {granted} bytes left"
            outcome = replace(outcome, reason=f"{outcome.reason}: {why}" if outcome.reason else why)
        seconds = outcome.seconds if started_s is None else asyncio.get_running_loop().time() - started_s
        return replace(outcome, budget_bytes=granted, seconds=seconds)
    except KernelError as error:
        return _GONE if not process.is_alive(pidfd) else Outcome(state=OutcomeState.FAILED, reason=str(error))
    finally:
        os.close(pidfd)


class Warmer:
    """The host's queue of warm-ups. Fair between namespaces (policy/admission); one slot a job."""

    def __init__(self, *, injector: Injector, root: Root, metrics: Metrics, stalled_s: float = STALLED_S) -> None:
        self._injector = injector
        self._root = root
        self._metrics = metrics
        self._admission = Admission()
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._claims: dict[str, Claim] = {}
        self._cancelled: set[str] = set()
        """Jobs that were cancelled where neither a turn nor a worker is there to hear of it."""
        self._settling: dict[str, None] = {}
        """Jobs that wait for what others want, in the order in which they got their slots."""
        self._stalled_s = stalled_s
        self._node_reserve_bytes = 0

    def use_limits(self, config: Config) -> None:
        self._wake(self._admission.use_limits(config.limits))
        self._node_reserve_bytes = config.node.reserve_bytes

    async def warm(self, entry: Entry, *, chroot: str = "") -> Outcome:
        """The whole warm-up of one container; cancelled by ``cancel``, bounded by the plan's deadline."""
        job_id = entry.container.id
        deadline_s = entry.plan.deadline_s
        started = self._now()
        decision = self._admission.offer(job_id, entry.pod.namespace, urgent=entry.held_by_hook)
        if decision.refused:
            return Outcome(state=OutcomeState.SKIPPED, reason=decision.reason)
        claim: Claim | None = None
        try:
            if not await self._turn(job_id, decision, deadline_s):
                return Outcome(state=OutcomeState.DEADLINE, reason=f"waited {deadline_s:g} s for a slot")
            entry.state = OutcomeState.RUNNING
            await self._settled(job_id)
            if job_id in self._cancelled:
                raise asyncio.CancelledError
            claim = self._claims[job_id] = Claim(self._now(), stalled_s=self._stalled_s)
            self._look_later(entry, claim)
            outcome = await self._warm(entry, claim, chroot, deadline_s - (self._now() - started))
            self._admission.charge(job_id, outcome.read_bytes)
            return outcome
        except asyncio.CancelledError:
            if claim is not None:
                self._admission.charge(job_id, claim.read_bytes)
            return Outcome(state=OutcomeState.CANCELLED, reason="the container stopped")
        finally:
            self._turns.pop(job_id, None)
            self._claims.pop(job_id, None)
            self._cancelled.discard(job_id)
            self._wake(self._admission.finish(job_id))
            self._wake(tuple(self._settling))

    async def _warm(self, entry: Entry, claim: Claim, chroot: str, left_s: float) -> Outcome:
        """From the claim to the outcome. Nothing is awaited before the others' pledges have become a budget."""
        job_id = entry.container.id

        def grant(levels: Sequence[MemoryLevel], n_bytes: int) -> int:
            granted = self._admission.reserve(job_id, n_bytes)
            claim.grant(self._now(), frozenset(level.path for level in levels), granted)
            return granted

        def on_progress(progress: Progress) -> None:
            entry.progress = progress
            entry.entered.set()
            if job_id in self._cancelled:
                self._cancelled.discard(job_id)
                _spawn(self._injector.cancel(job_id))
            before = claim.wanted_bytes
            claim.note(progress)
            if claim.wanted_bytes != before:
                self._announced(job_id, claim)

        outcome = await warm_target(
            self._injector,
            self._root,
            Target(
                pid=entry.container.pid,
                job_id=job_id,
                container_id=job_id,
                group=entry.pod.namespace,
                chroot=chroot,
            ),
            entry.plan,
            deadline_s=max(0.1, left_s),
            node_reserve_bytes=self._node_reserve_bytes,
            on_progress=on_progress,
            grant=grant,
            pledges=tuple(other.pledge() for name, other in self._claims.items() if name != job_id),
        )
        if claim.outgrown and outcome.state is OutcomeState.CANCELLED:
            reason = "its files grew past what is left of the quota of the namespace (limits.namespace_bytes)"
            outcome = replace(outcome, state=OutcomeState.OVER_BUDGET, reason=reason)
        return outcome

    def _announced(self, job_id: str, claim: Claim) -> None:
        """A job has said what it wants: the rest of what it was granted is free for others."""
        fits, job_ids = self._admission.revise(job_id, claim.wanted_bytes or 0)
        self._wake(job_ids)
        self._wake(tuple(self._settling))
        if not fits and not claim.outgrown:
            claim.outgrown = True
            _spawn(self._injector.cancel(job_id))

    async def _settled(self, job_id: str) -> None:
        """Wait until those under way have said what they want, as long as that is worth it."""
        while (seconds := max((c.expected_s(self._now()) for c in self._claims.values()), default=0.0)) > 0:
            self._settling.setdefault(job_id)
            try:
                await self._woken(job_id, seconds)
            finally:
                del self._settling[job_id]

    def _look_later(self, entry: Entry, claim: Claim) -> None:
        asyncio.get_running_loop().call_later(self._stalled_s / _LOOKS, self._look, entry, claim)

    def _look(self, entry: Entry, claim: Claim) -> None:
        """Whether a running job gets on; one that does not gives its slot back."""
        job_id = entry.container.id
        if self._claims.get(job_id) is not claim:
            return
        if not claim.gets_on(self._now()):
            job_ids = self._admission.stall(job_id)
            if self._admission.is_stalled(job_id):
                claim.stalled = True
                logs.info(
                    "a warm-up does not get on: its slot goes to others",
                    container=job_id[:12],
                    pod=f"{entry.pod.namespace}/{entry.pod.name}",
                    read_bytes=claim.read_bytes,
                )
                self._wake(job_ids)
                return
        self._look_later(entry, claim)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _turn(self, job_id: str, decision: Decision, deadline_s: float) -> bool:
        if decision.start:
            return True
        return await self._woken(job_id, deadline_s)

    async def _woken(self, job_id: str, seconds: float) -> bool:
        """Until ``_wake`` names this job; False where it did not in time. ``cancel`` ends the wait as well."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[job_id] = turn
        await asyncio.wait([turn], timeout=seconds)  # wait_for may swallow a cancellation that comes with the result
        if turn.cancelled():
            raise asyncio.CancelledError
        return turn.done()

    def _wake(self, job_ids: tuple[str, ...]) -> None:
        for job_id in job_ids:
            turn = self._turns.get(job_id)
            if turn is not None and not turn.done():
                turn.set_result(None)

    def cancel(self, entry: Entry) -> None:
        """Stop what runs or waits for this container; its task ends within a second."""
        job_id = entry.container.id
        if self._admission.is_known(job_id):
            self._cancelled.add(job_id)
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
