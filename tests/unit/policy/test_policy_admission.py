"""The queue: slots of the host and of a namespace, fairness, urgency, byte quota, and what gives a slot back."""

from __future__ import annotations

from nri_warmup.model.profile import Limits
from nri_warmup.policy.admission import MAX_QUEUED, Admission, Decision

START = Decision(start=True)


def test_starts_while_slots_are_free_then_waits() -> None:
    queue = Admission(Limits(jobs=2))
    assert queue.offer("a", "x") == START
    assert queue.offer("b", "x") == START
    third = queue.offer("c", "x")
    assert (third.start, third.refused) == (False, False)
    assert third.reason == "2 warm-ups run on this host (limits.jobs)"
    assert (queue.running, queue.queued) == (2, 1)
    assert queue.finish("a") == ("c",)
    assert (queue.running, queue.queued) == (2, 0)


def test_order_of_arrival_within_a_namespace() -> None:
    queue = Admission(Limits(jobs=1))
    for job in "abc":
        queue.offer(job, "x")
    assert [queue.finish("a"), queue.finish("b"), queue.finish("c")] == [("b",), ("c",), ()]


def test_a_crowd_does_not_delay_another_namespace_s_first() -> None:
    queue = Admission(Limits(jobs=2))
    for index in range(100):
        queue.offer(f"crowd{index}", "crowd")
    queue.offer("lone", "other")
    assert queue.finish("crowd0") == ("lone",)


def test_namespaces_take_turns() -> None:
    queue = Admission(Limits(jobs=1))
    queue.offer("x0", "x")
    for index in range(1, 3):
        queue.offer(f"x{index}", "x")
    for index in range(2):
        queue.offer(f"y{index}", "y")
    order = []
    job = "x0"
    while started := queue.finish(job):
        (job,) = started
        order.append(job)
    assert order == ["y0", "x1", "y1", "x2"]


def test_namespace_slots() -> None:
    queue = Admission(Limits(jobs=4, namespace_jobs=1))
    assert queue.offer("a", "x").start
    assert queue.offer("b", "x").reason == "1 warm-ups of namespace x run (limits.namespace_jobs)"
    assert queue.offer("c", "y").start
    assert queue.finish("c") == ()
    assert queue.finish("a") == ("b",)


def test_who_holds_an_entrypoint_goes_first() -> None:
    queue = Admission(Limits(jobs=1))
    queue.offer("a", "x")
    queue.offer("b", "y")
    queue.offer("c", "x")
    queue.offer("d", "x", urgent=True)
    assert queue.finish("a") == ("d",)
    assert queue.finish("d") == ("b",)


def test_the_same_job_twice_is_refused() -> None:
    queue = Admission(Limits(jobs=1))
    queue.offer("a", "x")
    queue.offer("b", "x")
    assert queue.offer("a", "x").refused
    assert queue.offer("b", "x").refused


def test_withdrawing_a_waiting_job() -> None:
    queue = Admission(Limits(jobs=1))
    queue.offer("a", "x")
    queue.offer("b", "x")
    assert queue.finish("b") == ()
    assert queue.finish("a") == ()
    assert (queue.running, queue.queued) == (0, 0)
    assert queue.finish("never") == ()


def test_quota_bounds_what_a_job_may_read() -> None:
    queue = Admission(Limits(jobs=4, namespace_bytes=100))
    assert queue.offer("a", "x").start
    assert queue.reserve("a", 70) == 70
    assert queue.offer("b", "x").start
    assert queue.reserve("b", 70) == 30
    assert queue.reserve("b", 20) == 20
    assert queue.reserve("b", 1000) == 30
    assert queue.offer("other", "y").start
    assert queue.reserve("other", 1000) == 100


def test_quota_in_use_waits_and_what_is_given_back_starts() -> None:
    queue = Admission(Limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.reserve("a", 100)
    waits = queue.offer("b", "x")
    assert not waits.refused
    assert waits.reason == "the 100 of namespace x are in use (limits.namespace_bytes)"
    queue.charge("a", 60)
    assert queue.finish("a") == ("b",)
    assert queue.reserve("b", 1000) == 40


def test_quota_that_is_resident_refuses_until_the_container_is_gone() -> None:
    queue = Admission(Limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.charge("a", 100)
    queue.finish("a")
    refused = queue.offer("b", "x")
    assert refused.refused
    assert refused.reason == "namespace x has all of its 100 warm (limits.namespace_bytes)"
    assert queue.forget("a") == ()
    assert queue.offer("b", "x").start


def test_forget_starts_who_waited_for_the_bytes() -> None:
    queue = Admission(Limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.reserve("a", 100)
    queue.offer("b", "x")
    queue.charge("a", 100)
    assert queue.finish("a") == ()
    assert queue.forget("a") == ("b",)


def test_a_container_is_not_counted_against_itself() -> None:
    queue = Admission(Limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.charge("a", 100)
    queue.finish("a")
    assert queue.offer("a", "x").start
    assert queue.reserve("a", 100) == 100


def test_unknown_jobs_reserve_and_charge_nothing() -> None:
    queue = Admission(Limits(namespace_bytes=100))
    assert queue.reserve("a", 10) == 0
    queue.charge("a", 100)
    assert queue.offer("b", "x").start


def test_new_limits_start_who_fits_now() -> None:
    queue = Admission(Limits(jobs=1))
    for job in "abc":
        queue.offer(job, "x")
    assert queue.use_limits(Limits(jobs=3)) == ("b", "c")
    assert queue.use_limits(Limits(jobs=1)) == ()
    assert queue.finish("a") == ()


def test_the_queue_is_bounded() -> None:
    queue = Admission(Limits(jobs=1))
    for index in range(MAX_QUEUED + 1):
        assert not queue.offer(f"j{index}", "x").refused
    assert queue.offer("more", "x").refused
