"""What a running job claims of the room it shares, how long others wait for its word, and whether it gets on."""

from __future__ import annotations

from nri_warmup.model.outcome import Progress
from nri_warmup.policy.claim import ANNOUNCE_S, STALLED_BYTES, STALLED_S, Claim
from nri_warmup.policy.memory import Pledge

LEVELS = frozenset({"/pod/c", "/pod"})


def claim(granted: int = 100) -> Claim:
    found = Claim(1000.0)
    found.grant(1000.0, LEVELS, granted)
    return found


def test_its_pledge_is_what_it_wants_of_what_it_was_granted() -> None:
    job = claim()
    assert job.pledge() == Pledge(levels=LEVELS, n_bytes=0)
    job.note(Progress(wanted_bytes=70))
    assert job.pledge() == Pledge(levels=LEVELS, n_bytes=70)
    job.note(Progress(wanted_bytes=70, read_bytes=60, resident_bytes=60))
    assert job.pledge().n_bytes == 70
    job.note(Progress(wanted_bytes=1000))
    assert job.pledge().n_bytes == 100


def test_a_second_pass_that_starts_at_zero_takes_nothing_back() -> None:
    job = claim()
    job.note(Progress(wanted_bytes=70, read_bytes=40))
    job.note(Progress(wanted_bytes=10, read_bytes=0))
    assert (job.wanted_bytes, job.read_bytes, job.pledge().n_bytes) == (70, 40, 70)


def test_more_read_than_was_announced_counts() -> None:
    job = claim()
    job.note(Progress(wanted_bytes=10, read_bytes=50))
    assert job.wanted_bytes == 50


def test_a_job_that_only_measures_claims_nothing_and_nobody_waits_for_it() -> None:
    job = Claim(1000.0)
    assert job.expected_s(1000.0) == 0
    job.note(Progress(wanted_bytes=70))
    assert job.pledge().n_bytes == 0


def test_others_wait_for_its_word_a_moment_and_no_longer() -> None:
    job = claim()
    assert job.expected_s(1000.0) == ANNOUNCE_S
    assert job.expected_s(1000.0 + ANNOUNCE_S) == 0
    job.note(Progress())  # inside the container, nothing listed yet
    assert job.expected_s(1000.0) == ANNOUNCE_S
    assert job.wanted_bytes is None
    job.note(Progress(wanted_bytes=1))
    assert job.expected_s(1000.0) == 0


def test_one_without_a_slot_keeps_what_it_has_read_only() -> None:
    job = claim()
    job.note(Progress(wanted_bytes=70, read_bytes=20))
    job.stalled = True
    assert job.pledge().n_bytes == 20


def test_reading_enough_in_time_is_getting_on() -> None:
    job = claim()
    now = 1000.0
    for step in range(1, 5):
        now += STALLED_S * 0.9
        job.note(Progress(read_bytes=step * STALLED_BYTES))
        assert job.gets_on(now)
    assert job.gets_on(now + STALLED_S * 0.9)
    assert not job.gets_on(now + STALLED_S)


def test_a_trickle_is_not_getting_on() -> None:
    job = claim()
    assert job.gets_on(1000.0 + STALLED_S * 0.9)
    job.note(Progress(read_bytes=STALLED_BYTES - 1))
    assert not job.gets_on(1000.0 + STALLED_S)


def test_finding_resident_what_it_wants_is_getting_on() -> None:
    job = claim()
    job.note(Progress(resident_bytes=STALLED_BYTES))
    assert job.gets_on(1000.0 + STALLED_S)
