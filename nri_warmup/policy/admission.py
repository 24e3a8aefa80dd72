"""Who may read now: a queue of warm-ups as a state machine. Pure: no clock, no tasks; ids in, ids to start out.

A job starts when the host has a free slot (``limits.jobs``), its namespace has one (``limits.namespace_jobs``) and its
namespace's byte quota is not used up. The host's last free slot is kept for a job that holds an entrypoint, of a
namespace that has none: no namespace can take them all. Among those that wait, jobs that hold an entrypoint go first,
then the namespace with the fewest running, then the one that was served longest ago, then the order of arrival: one
tenant's hundred containers do not delay another's first. A job that does not get on gives its slot back (``stall``) and
goes on beside the others; how many may do so is bounded, on the host and for each namespace.

Bytes of a namespace are those that running jobs reserved and those that ended ones brought in, until their container is
gone (``forget``), which may be before its job has ended. A job learns what it may read when it starts, from
``reserve``; once it knows what it wants, the rest goes back (``revise``).
"""

from __future__ import annotations

from dataclasses import dataclass

from nri_warmup.model.profile import Limits
from nri_warmup.units import render_size

MAX_QUEUED = 10_000
NO_QUOTA = 1 << 63
STALLED_PER_SLOT = 2
"""Jobs that run without a slot, for each slot of the host."""


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
        self._stalled: set[str] = set()
        """Of those that run, the ones without a slot."""
        self._waiting: dict[str, _Job] = {}
        self._served: dict[str, int] = {}
        self._granted: dict[str, int] = {}
        self._reserved: dict[str, int] = {}
        self._gone: set[str] = set()
        """Containers that are gone while their job runs or waits: what it brings in is charged to nobody."""
        self._resident: dict[str, tuple[str, int]] = {}

    @property
    def running(self) -> int:
        """With a slot or without."""
        return len(self._running)

    @property
    def stalled(self) -> int:
        return len(self._stalled)

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def use_limits(self, limits: Limits) -> tuple[str, ...]:
        """New limits, for what starts from now on. Returns the jobs to start because of them."""
        self._limits = limits
        return self._start_waiting()

    def offer(self, job_id: str, namespace: str, *, urgent: bool = False) -> Decision:
        """A job wants to run. ``urgent``: an entrypoint is held for it."""
        if self.is_known(job_id):
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
        return Decision(reason=self._obstacle(job, self._slots_by_namespace()) or "others were first")

    def reserve(self, job_id: str, want_bytes: int) -> int:
        """What a running job may read of ``want_bytes`` within its namespace's quota; counted from now on."""
        job = self._running.get(job_id)
        if job is None:
            return 0
        granted = min(max(0, want_bytes), self._left_bytes(job))
        self._granted[job_id] = self._reserved[job_id] = granted
        return granted

    def revise(self, job_id: str, wanted_bytes: int) -> tuple[bool, tuple[str, ...]]:
        """The job has found what it wants: no more than that stays reserved of what it was granted.

        May be said again as that grows. Returns whether it still fits its namespace's quota (it is counted in any
        case: what is read is read), and the jobs to start now.
        """
        job, held = self._running.get(job_id), self._reserved.get(job_id)
        if job is None or held is None:
            return True, ()
        needed = self._reserved[job_id] = min(self._granted[job_id], max(0, wanted_bytes))
        return needed <= max(held, self._left_bytes(job)), self._start_waiting()

    def charge(self, job_id: str, n_bytes: int) -> None:
        """What the job brought in: counts against its namespace until ``forget``, also where that came before."""
        job = self._running.get(job_id)
        if job is None:
            return
        self._unreserve(job_id)
        if job_id not in self._gone:
            self._resident[job_id] = (job.namespace, max(0, n_bytes))

    def stall(self, job_id: str) -> tuple[str, ...]:
        """The job runs and does not get on: it gives its slot back, where there are not too many of these already.

        Its bytes stay counted. It gets no slot again. Returns the jobs to start now; see ``is_stalled``.
        """
        job = self._running.get(job_id)
        if job is None or job_id in self._stalled:
            return ()
        of_namespace = sum(self._running[other].namespace == job.namespace for other in self._stalled)
        if of_namespace >= self._limits.namespace_jobs or len(self._stalled) >= STALLED_PER_SLOT * self._limits.jobs:
            return ()
        self._stalled.add(job_id)
        return self._start_waiting()

    def is_known(self, job_id: str) -> bool:
        return job_id in self._running or job_id in self._waiting

    def is_stalled(self, job_id: str) -> bool:
        return job_id in self._stalled

    def finish(self, job_id: str) -> tuple[str, ...]:
        """The job ended, or no longer wants to wait. Returns the jobs to start now. Unknown ids are fine."""
        self._running.pop(job_id, None)
        self._waiting.pop(job_id, None)
        self._stalled.discard(job_id)
        self._gone.discard(job_id)
        self._unreserve(job_id)
        return self._start_waiting()

    def forget(self, job_id: str) -> tuple[str, ...]:
        """The container is gone and its pages with it. Returns the jobs to start now."""
        self._resident.pop(job_id, None)
        if self.is_known(job_id):
            self._gone.add(job_id)
        return self._start_waiting()

    # -- who is next -----------------------------------------------------------------------------------------------

    def _start_waiting(self) -> tuple[str, ...]:
        started: list[str] = []
        while (job := self._next()) is not None:
            del self._waiting[job.id]
            self._running[job.id] = job
            self._turns += 1
            self._served[job.namespace] = self._turns
            started.append(job.id)
        self._trim_served()
        return tuple(started)

    def _next(self) -> _Job | None:
        """One candidate a namespace, its first urgent job or else its first; the best of them."""
        if not self._waiting or self._free_slots() <= 0:
            return None
        heads: dict[str, _Job] = {}
        for job in self._waiting.values():
            head = heads.get(job.namespace)
            if head is None or (job.urgent and not head.urgent):
                heads[job.namespace] = job
        running = self._slots_by_namespace()
        return min(
            (job for job in heads.values() if not self._obstacle(job, running)),
            key=lambda job: (
                not job.urgent,
                running.get(job.namespace, 0),
                self._served.get(job.namespace, 0),
                job.arrival,
            ),
            default=None,
        )

    def _obstacle(self, job: _Job, running: dict[str, int]) -> str:
        """What the job waits for, given how many slots each namespace has; empty: nothing."""
        count = running.get(job.namespace, 0)
        if count >= self._limits.namespace_jobs:
            return f"{count} warm-ups of namespace {job.namespace} run (limits.namespace_jobs)"
        quota = self._limits.namespace_bytes
        if quota is not None and self._used_bytes(job.namespace, but=job.id) >= quota:
            return f"the {render_size(quota)} of namespace {job.namespace} are in use (limits.namespace_bytes)"
        free = self._free_slots()
        if free <= 0:
            return f"{sum(running.values())} warm-ups run on this host (limits.jobs)"
        if free == 1 < self._limits.jobs and (count or not job.urgent):
            return "the last free slot is kept for a held container of a namespace that has none (limits.jobs)"
        return ""

    def _free_slots(self) -> int:
        return self._limits.jobs - (len(self._running) - len(self._stalled))

    def _slots_by_namespace(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for job in self._running.values():
            if job.id not in self._stalled:
                counts[job.namespace] = counts.get(job.namespace, 0) + 1
        return counts

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _unreserve(self, job_id: str) -> None:
        self._granted.pop(job_id, None)
        self._reserved.pop(job_id, None)

    def _left_bytes(self, job: _Job) -> int:
        """Of its namespace's quota, for this job."""
        quota = self._limits.namespace_bytes
        return NO_QUOTA if quota is None else max(0, quota - self._used_bytes(job.namespace, but=job.id))

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
