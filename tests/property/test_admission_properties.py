"""The queue under any order of calls: bounds hold, nobody is lost, nobody waits beside a free slot."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nri_warmup.model.profile import Limits
from nri_warmup.policy.admission import STALLED_PER_SLOT, Admission

NAMESPACES = ("x", "y", "z")
QUOTA = 100


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(jobs=3, namespace_jobs=2, namespace_bytes=QUOTA)
        self.queue = Admission(self.limits)
        self.namespace: dict[str, str] = {}
        self.urgent: set[str] = set()
        self.running: set[str] = set()
        self.stalled: set[str] = set()
        self.gone: set[str] = set()
        self.grown: set[str] = set()
        """Namespaces in which a job outgrew the quota: what it read is counted all the same."""
        self.granted: dict[str, int] = {}
        self.waiting: set[str] = set()
        self.reserved: dict[str, int] = {}
        self.resident: dict[str, int] = {}
        self.count = 0

    def started(self, jobs: tuple[str, ...]) -> None:
        for job in jobs:
            assert job in self.waiting
            self.waiting.remove(job)
            others = [self.namespace[other] for other in self.slots()]
            self.running.add(job)
            assert len(others) < self.limits.jobs
            assert others.count(self.namespace[job]) < self.limits.namespace_jobs
            if len(others) == self.limits.jobs - 1 > 0:
                assert job in self.urgent
                assert self.namespace[job] not in others

    def slots(self) -> set[str]:
        return self.running - self.stalled

    def used(self, namespace: str) -> int:
        held = [*self.reserved.items(), *self.resident.items()]
        return sum(n for job, n in held if self.namespace[job] == namespace)

    @rule(namespace=st.sampled_from(NAMESPACES), urgent=st.booleans())
    def offer(self, namespace: str, urgent: bool) -> None:
        self.count += 1
        job = f"{namespace}{self.count}"
        self.namespace[job] = namespace
        if urgent:
            self.urgent.add(job)
        decision = self.queue.offer(job, namespace, urgent=urgent)
        assert bool(decision.reason) is not decision.start
        if decision.refused:
            assert sum(n for j, n in self.resident.items() if self.namespace[j] == namespace) >= QUOTA
        else:
            self.waiting.add(job)
            if decision.start:
                self.started((job,))

    @precondition(lambda self: self.running > self.reserved.keys())
    @rule(data=st.data(), want=st.integers(0, 150))
    def reserve(self, data: st.DataObject, want: int) -> None:
        """Once a job; what is too much goes back by ``revise``."""
        job = data.draw(st.sampled_from(sorted(self.running - self.reserved.keys())))
        granted = self.queue.reserve(job, want)
        assert 0 <= granted <= want
        self.reserved[job] = self.granted[job] = granted
        assert self.used(self.namespace[job]) <= QUOTA or self.namespace[job] in self.grown

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), wanted=st.integers(0, 150))
    def revise(self, data: st.DataObject, wanted: int) -> None:
        job = data.draw(st.sampled_from(sorted(self.reserved)))
        before, namespace = self.reserved[job], self.namespace[job]
        self.reserved[job] = min(wanted, self.granted[job])
        fits, jobs = self.queue.revise(job, wanted)
        assert fits == (self.reserved[job] <= before or self.used(namespace) <= QUOTA)
        if not fits:
            self.grown.add(namespace)
        self.started(jobs)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.running)))
        jobs = self.queue.stall(job)
        if self.queue.is_stalled(job):
            self.stalled.add(job)
        assert len(self.stalled) <= STALLED_PER_SLOT * 4
        self.started(jobs)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.floats(0, 1), charge=st.booleans())
    def finish(self, data: st.DataObject, share: float, charge: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.running)))
        brought = int(self.reserved.pop(job, 0) * share)
        if charge:
            self.queue.charge(job, brought)
            if job not in self.gone:
                self.resident[job] = brought
        self.running.remove(job)
        self.stalled.discard(job)
        self.gone.discard(job)
        self.started(self.queue.finish(job))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(job)
        self.gone.discard(job)
        self.started(self.queue.finish(job))

    @precondition(lambda self: self.resident or self.running or self.waiting)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted({*self.resident, *self.running, *self.waiting})))
        self.resident.pop(job, None)
        if job in self.running or job in self.waiting:
            self.gone.add(job)
        self.started(self.queue.forget(job))

    @rule(jobs=st.integers(1, 4), namespace_jobs=st.integers(1, 3))
    def reload(self, jobs: int, namespace_jobs: int) -> None:
        self.limits = Limits(jobs=jobs, namespace_jobs=namespace_jobs, namespace_bytes=QUOTA)
        self.started(self.queue.use_limits(self.limits))

    @invariant()
    def counts_agree(self) -> None:
        assert (self.queue.running, self.queue.queued) == (len(self.running), len(self.waiting))
        assert self.queue.stalled == len(self.stalled)

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        free = self.limits.jobs - len(self.slots())
        if free <= 0:
            return
        for job in self.waiting:
            namespace = self.namespace[job]
            count = sum(self.namespace[other] == namespace for other in self.slots())
            kept = free == 1 < self.limits.jobs and (count > 0 or job not in self.urgent)
            assert kept or count >= self.limits.namespace_jobs or self.used(namespace) >= QUOTA


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=40)


some_limits = st.builds(
    Limits, jobs=st.integers(2, 6), namespace_jobs=st.integers(1, 8), namespace_bytes=st.none() | st.just(QUOTA)
)
actions = st.lists(
    st.tuples(st.sampled_from(["offer", "urgent", "stall", "finish", "reserve"]), st.integers(0, 9)), max_size=40
)


@given(some_limits, actions)
def test_whatever_one_namespace_does_a_held_container_of_another_starts_at_once(
    limits: Limits, steps: list[tuple[str, int]]
) -> None:
    queue = Admission(limits)
    for action, number in steps:
        job = f"x{number}"
        match action:
            case "offer" | "urgent":
                queue.offer(job, "x", urgent=action == "urgent")
            case "stall":
                queue.stall(job)
            case "finish":
                queue.finish(job)
            case "reserve":
                queue.reserve(job, 1 << 40)
    assert queue.offer("victim", "y", urgent=True).start
    assert queue.reserve("victim", 50) == 50


@given(st.permutations(["charge", "finish", "forget"]), st.integers(0, QUOTA), st.booleans())
def test_forget_may_come_before_or_after_the_end_of_the_job(order: list[str], read: int, stalled: bool) -> None:
    """Whenever the container goes, nothing of it is left; with ``charge`` after ``finish``, it never counted."""
    queue = Admission(Limits(namespace_bytes=QUOTA))
    queue.offer("a", "x")
    queue.reserve("a", QUOTA)
    if stalled:
        queue.stall("a")
    for step in order:
        if step == "charge":
            queue.charge("a", read)
        elif step == "finish":
            queue.finish("a")
        else:
            queue.forget("a")
    assert queue.offer("b", "x").start
    assert queue.reserve("b", 1 << 40) == QUOTA
    assert (queue.running, queue.stalled, queue.queued) == (1, 0, 0)
    queue.finish("b")
    assert queue.offer("a", "x").start  # a new container of the same name is counted like any other
    queue.charge("a", QUOTA)
    queue.finish("a")
    assert queue.offer("c", "x").refused
