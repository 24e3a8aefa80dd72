"""Who may read now: a queue of warm-ups as a state machine. Pure: no clock, no tasks; ids in, ids to start out.

A job starts when the host has a free slot (``limits.jobs``), its namespace has one (``limits.namespace_jobs``) and its
namespace's byte quota is not used up. Among those that wait, jobs that hold an entrypoint go first, then the namespace
with the fewest running, then the one that was served longest ago, then the order of arrival: one tenant's hundred
containers do not delay another's first.

Bytes of a namespace are those that running jobs reserved and those that ended ones brought in, until their container is
gone (``forget``). A job learns what it may read when it starts, from ``reserve``.
"""

from __future__ import annotations

from dataclasses import dataclass

from nri_warmup.model.profile import Limits
from nri_warmup.units import render_size

MAX_QUEUED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``start`` now, wait (neither), or ``refused`` for good. ``reason``: what it waits for, or why it is refused."""

    start: bool = False
    refused: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    id: str
    namespace: str
    urgent: bool
    arrival: int


class Admission:
    """The queue. Not shared between threads; every method returns at once."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits if limits is not None else Limits()
        self._arrivals = 0
        self._turns = 0
        self._running: dict[str, _Job] = {}
        self._waiting: dict[str, _Job] = {}
        self._served: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._resident: dict[str, tuple[str, int]] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def use_limits(self, limits: Limits) -> tuple[str, ...]:
        """New limits, for what starts from now on. Returns the jobs to start because of them."""
        self._limits = limits
        return self._start_waiting()

    def offer(self, job_id: str, namespace: str, *, urgent: bool = False) -> Decision:
        """A job wants to run. ``urgent``: an entrypoint is held for it."""
        if job_id in self._running or job_id in self._waiting:
            return Decision(refused=True, reason="a warm-up of this container is under way already")
        quota = self._limits.namespace_bytes
        if quota is not None and self._resident_bytes(namespace, but=job_id) >= quota:
            text = f"namespace {namespace} has all of its {render_size(quota)} warm (limits.namespace_bytes)"
            return Decision(refused=True, reason=text)
        if len(self._waiting) >= MAX_QUEUED:
            return Decision(refused=True, reason=f"{MAX_QUEUED} warm-ups wait already")
        self._arrivals += 1
        job = _Job(id=job_id, namespace=namespace, urgent=urgent, arrival=self._arrivals)
        self._waiting[job_id] = job
        if job_id in self._start_waiting():
            return Decision(start=True)
        return Decision(reason=self._obstacle(job) or "others were first")

    def reserve(self, job_id: str, want_bytes: int) -> int:
        """What a running job may read of ``want_bytes`` within its namespace's quota; counted from now on."""
        job = self._running.get(job_id)
        if job is None:
            return 0
        self._reserved.pop(job_id, None)
        granted = max(0, want_bytes)
        quota = self._limits.namespace_bytes
        if quota is not None:
            granted = min(granted, max(0, quota - self._used_bytes(job.namespace, but=job_id)))
        self._reserved[job_id] = granted
        return granted

    def charge(self, job_id: str, n_bytes: int) -> None:
        """What the job brought in: counts against its namespace until ``forget``."""
        job = self._running.get(job_id)
        if job is not None:
            self._reserved.pop(job_id, None)
            self._resident[job_id] = (job.namespace, max(0, n_bytes))

    def finish(self, job_id: str) -> tuple[str, ...]:
        """The job ended, or no longer wants to wait. Returns the jobs to start now. Unknown ids are fine."""
        self._running.pop(job_id, None)
        self._waiting.pop(job_id, None)
        self._reserved.pop(job_id, None)
        return self._start_waiting()

    def forget(self, job_id: str) -> tuple[str, ...]:
        """The container is gone and its pages with it. Returns the jobs to start now."""
        self._resident.pop(job_id, None)
        return self._start_waiting()

    # -- who is next -----------------------------------------------------------------------------------------------

    def _start_waiting(self) -> tuple[str, ...]:
        started: list[str] = []
        while len(self._running) < self._limits.jobs:
            job = self._next()
            if job is None:
                break
            del self._waiting[job.id]
            self._running[job.id] = job
            self._turns += 1
            self._served[job.namespace] = self._turns
            started.append(job.id)
        self._trim_served()
        return tuple(started)

    def _next(self) -> _Job | None:
        """One candidate a namespace, its first urgent job or else its first; the best of them."""
        heads: dict[str, _Job] = {}
        for job in self._waiting.values():
            head = heads.get(job.namespace)
            if head is None or (job.urgent and not head.urgent):
                heads[job.namespace] = job
        running = self._running_by_namespace()
        free = [job for job in heads.values() if self._namespace_obstacle(job, running) == ""]
        if not free:
            return None
        return min(
            free,
            key=lambda job: (
                not job.urgent,
                running.get(job.namespace, 0),
                self._served.get(job.namespace, 0),
                job.arrival,
            ),
        )

    def _obstacle(self, job: _Job) -> str:
        own = self._namespace_obstacle(job, self._running_by_namespace())
        if not own and len(self._running) >= self._limits.jobs:
            return f"{len(self._running)} warm-ups run on this host (limits.jobs)"
        return own

    def _namespace_obstacle(self, job: _Job, running: dict[str, int]) -> str:
        count = running.get(job.namespace, 0)
        if count >= self._limits.namespace_jobs:
            return f"{count} warm-ups of namespace {job.namespace} run (limits.namespace_jobs)"
        quota = self._limits.namespace_bytes
        if quota is not None and self._used_bytes(job.namespace, but=job.id) >= quota:
            return f"the {render_size(quota)} of namespace {job.namespace} are in use (limits.namespace_bytes)"
        return ""

    def _running_by_namespace(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for job in self._running.values():
            counts[job.namespace] = counts.get(job.namespace, 0) + 1
        return counts

    def _resident_bytes(self, namespace: str, *, but: str) -> int:
        return sum(n for owner, (name, n) in self._resident.items() if name == namespace and owner != but)

    def _used_bytes(self, namespace: str, *, but: str) -> int:
        reserved = sum(
            n for owner, n in self._reserved.items() if owner != but and self._running[owner].namespace == namespace
        )
        return reserved + self._resident_bytes(namespace, but=but)

    def _trim_served(self) -> None:
        """Turns are kept only for namespaces that have something here: memory does not grow with the cluster's age."""
        if len(self._served) > 1024:
            alive = {job.namespace for jobs in (self._running, self._waiting) for job in jobs.values()}
            self._served = {name: turn for name, turn in self._served.items() if name in alive}
