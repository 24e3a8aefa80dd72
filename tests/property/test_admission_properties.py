"""The queue under any order of calls: bounds hold, nobody is lost, nobody waits beside a free slot."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nri_warmup.model.profile import Limits
from nri_warmup.policy.admission import Admission

NAMESPACES = ("x", "y", "z")
QUOTA = 100


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(jobs=2, namespace_jobs=2, namespace_bytes=QUOTA)
        self.queue = Admission(self.limits)
        self.namespace: dict[str, str] = {}
        self.running: set[str] = set()
        self.waiting: set[str] = set()
        self.reserved: dict[str, int] = {}
        self.resident: dict[str, int] = {}
        self.count = 0

    def started(self, jobs: tuple[str, ...]) -> None:
        for job in jobs:
            assert job in self.waiting
            self.waiting.remove(job)
            self.running.add(job)

    def used(self, namespace: str) -> int:
        held = [*self.reserved.items(), *self.resident.items()]
        return sum(n for job, n in held if self.namespace[job] == namespace)

    @rule(namespace=st.sampled_from(NAMESPACES), urgent=st.booleans())
    def offer(self, namespace: str, urgent: bool) -> None:
        self.count += 1
        job = f"{namespace}{self.count}"
        self.namespace[job] = namespace
        decision = self.queue.offer(job, namespace, urgent=urgent)
        assert bool(decision.reason) is not decision.start
        if decision.refused:
            assert sum(n for j, n in self.resident.items() if self.namespace[j] == namespace) >= QUOTA
        else:
            self.waiting.add(job)
            if decision.start:
                self.started((job,))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), want=st.integers(0, 150))
    def reserve(self, data: st.DataObject, want: int) -> None:
        job = data.draw(st.sampled_from(sorted(self.running)))
        self.reserved.pop(job, None)
        granted = self.queue.reserve(job, want)
        assert 0 <= granted <= want
        self.reserved[job] = granted
        assert self.used(self.namespace[job]) <= QUOTA

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.floats(0, 1), charge=st.booleans())
    def finish(self, data: st.DataObject, share: float, charge: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.running)))
        brought = int(self.reserved.pop(job, 0) * share)
        if charge:
            self.queue.charge(job, brought)
            self.resident[job] = brought
        self.running.remove(job)
        self.started(self.queue.finish(job))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(job)
        self.started(self.queue.finish(job))

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.resident)))
        del self.resident[job]
        self.started(self.queue.forget(job))

    @rule(jobs=st.integers(1, 4), namespace_jobs=st.integers(1, 3))
    def reload(self, jobs: int, namespace_jobs: int) -> None:
        self.limits = Limits(jobs=jobs, namespace_jobs=namespace_jobs, namespace_bytes=QUOTA)
        self.started(self.queue.use_limits(self.limits))

    @invariant()
    def counts_agree(self) -> None:
        assert (self.queue.running, self.queue.queued) == (len(self.running), len(self.waiting))

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        if len(self.running) >= self.limits.jobs:
            return
        for job in self.waiting:
            namespace = self.namespace[job]
            count = sum(self.namespace[other] == namespace for other in self.running)
            assert count >= self.limits.namespace_jobs or self.used(namespace) >= QUOTA


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=40)
