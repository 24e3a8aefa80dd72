"""The queue: slots of the host and of a namespace, fairness, urgency, byte quota, and what gives a slot back."""

from __future__ import annotations

from dataclasses import replace

from nri_warmup.model.profile import Limits
from nri_warmup.policy.admission import MAX_QUEUED, STALLED_PER_SLOT, Admission, Decision

START = Decision(start=True)
KEPT = "the last free slot is kept for a held container of a namespace that has none (limits.jobs)"


def limits(**values: int) -> Limits:
    return replace(Limits(namespace_jobs=100), **values)


def test_starts_while_slots_are_free_then_waits() -> None:
    queue = Admission(limits(jobs=3))
    assert queue.offer("a", "x") == START
    assert queue.offer("b", "x") == START
    third = queue.offer("c", "x")
    assert (third.start, third.refused) == (False, False)
    assert third.reason == KEPT
    assert (queue.running, queue.queued) == (2, 1)
    assert queue.offer("urgent", "y", urgent=True).start
    assert queue.offer("d", "z", urgent=True).reason == "3 warm-ups run on this host (limits.jobs)"
    assert queue.finish("urgent") == ("d",)
    assert queue.finish("a") == ()
    assert queue.finish("b") == ("c",)
    assert (queue.running, queue.queued) == (2, 0)


def test_one_namespace_does_not_take_the_last_slot_by_urgency_either() -> None:
    queue = Admission(limits(jobs=3))
    for job in "abc":
        queue.offer(job, "x", urgent=True)
    assert (queue.running, queue.queued) == (2, 1)
    assert queue.offer("victim", "y", urgent=True).start


def test_by_default_one_namespace_leaves_room_for_an_ordinary_job_of_another() -> None:
    queue = Admission()
    for index in range(10):
        queue.offer(f"x{index}", "x", urgent=True)
    assert queue.offer("y", "y").start
    assert queue.offer("z", "z", urgent=True).start


def test_a_job_that_does_not_get_on_gives_its_slot_to_others_and_keeps_its_bytes() -> None:
    queue = Admission(limits(jobs=1, namespace_bytes=100))
    queue.offer("slow", "x")
    queue.reserve("slow", 60)
    queue.offer("next", "x")
    assert queue.stall("slow") == ("next",)
    assert queue.is_stalled("slow")
    assert (queue.running, queue.stalled, queue.queued) == (2, 1, 0)
    assert queue.reserve("next", 100) == 40
    assert queue.stall("slow") == ()
    queue.finish("slow")
    assert (queue.running, queue.stalled) == (1, 0)
    assert queue.reserve("next", 100) == 100


def test_how_many_run_without_a_slot_is_bounded() -> None:
    queue = Admission(limits(jobs=4, namespace_jobs=1))
    queue.offer("a", "x")
    assert queue.stall("a") == ()
    queue.offer("b", "x")
    assert queue.stall("b") == ()
    assert not queue.is_stalled("b")
    queue.finish("a")
    queue.stall("b")
    assert queue.is_stalled("b")
    for index in range(20):
        assert queue.offer(f"n{index}", f"n{index}").start == (index < 7 + 3)
        queue.stall(f"n{index}")
    assert queue.stalled == 4 * STALLED_PER_SLOT
    assert queue.stall("never offered") == ()


def test_what_a_job_does_not_want_goes_back_to_its_namespace() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    assert queue.reserve("a", 1 << 40) == 100
    assert not queue.offer("b", "x").start
    assert queue.revise("a", 30) == (True, ("b",))
    assert queue.reserve("b", 1000) == 70
    assert queue.revise("b", 20) == (True, ())
    assert queue.revise("a", 80) == (True, ())
    assert queue.revise("b", 20) == (True, ())


def test_a_job_that_outgrows_the_quota_is_told_so_and_counted() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.reserve("a", 100)
    queue.revise("a", 30)
    queue.offer("b", "x")
    queue.reserve("b", 60)
    assert queue.revise("a", 41) == (False, ())
    assert queue.offer("c", "x").reason == "the 100 of namespace x are in use (limits.namespace_bytes)"
    assert queue.revise("a", 1000) == (False, ())
    assert queue.revise("nobody", 5) == (True, ())


def test_less_quota_is_no_reason_to_stop_what_runs() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.reserve("a", 100)
    queue.use_limits(limits(jobs=4, namespace_bytes=10))
    assert queue.revise("a", 90) == (True, ())


def test_a_container_that_goes_while_its_job_runs_leaves_nothing() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    for job in "ab":
        queue.offer(job, "x")
        queue.reserve(job, 50)
    for job in "ab":
        queue.forget(job)
        queue.charge(job, 50)
        queue.finish(job)
    assert queue.offer("c", "x").start
    assert queue.reserve("c", 1000) == 100


def test_order_of_arrival_within_a_namespace() -> None:
    queue = Admission(Limits(jobs=1))
    for job in "abc":
        queue.offer(job, "x")
    assert [queue.finish("a"), queue.finish("b"), queue.finish("c")] == [("b",), ("c",), ()]


def test_a_crowd_does_not_delay_another_namespace_s_first() -> None:
    queue = Admission(limits(jobs=3))
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
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    assert queue.offer("a", "x").start
    assert queue.reserve("a", 70) == 70
    assert queue.offer("b", "x").start
    assert queue.reserve("b", 70) == 30
    assert queue.reserve("b", 20) == 20
    assert queue.reserve("b", 1000) == 30
    assert queue.offer("other", "y").start
    assert queue.reserve("other", 1000) == 100


def test_quota_in_use_waits_and_what_is_given_back_starts() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.reserve("a", 100)
    waits = queue.offer("b", "x")
    assert not waits.refused
    assert waits.reason == "the 100 of namespace x are in use (limits.namespace_bytes)"
    queue.charge("a", 60)
    assert queue.finish("a") == ("b",)
    assert queue.reserve("b", 1000) == 40


def test_quota_that_is_resident_refuses_until_the_container_is_gone() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.charge("a", 100)
    queue.finish("a")
    refused = queue.offer("b", "x")
    assert refused.refused
    assert refused.reason == "namespace x has all of its 100 warm (limits.namespace_bytes)"
    assert queue.forget("a") == ()
    assert queue.offer("b", "x").start


def test_forget_starts_who_waited_for_the_bytes() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.reserve("a", 100)
    queue.offer("b", "x")
    queue.charge("a", 100)
    assert queue.finish("a") == ()
    assert queue.forget("a") == ("b",)


def test_a_container_is_not_counted_against_itself() -> None:
    queue = Admission(limits(jobs=4, namespace_bytes=100))
    queue.offer("a", "x")
    queue.charge("a", 100)
    queue.finish("a")
    assert queue.offer("a", "x").start
    assert queue.reserve("a", 100) == 100


def test_unknown_jobs_reserve_and_charge_nothing() -> None:
    queue = Admission(limits(namespace_bytes=100))
    assert queue.reserve("a", 10) == 0
    queue.charge("a", 100)
    assert queue.offer("b", "x").start


def test_new_limits_start_who_fits_now() -> None:
    queue = Admission(Limits(jobs=1))
    for job in "abc":
        queue.offer(job, "x")
    assert queue.use_limits(limits(jobs=4)) == ("b", "c")
    assert queue.use_limits(limits(jobs=1)) == ()
    assert queue.finish("a") == ()


def test_the_queue_is_bounded() -> None:
    queue = Admission(Limits(jobs=1))
    for index in range(MAX_QUEUED + 1):
        assert not queue.offer(f"j{index}", "x").refused
    assert queue.offer("more", "x").refused
