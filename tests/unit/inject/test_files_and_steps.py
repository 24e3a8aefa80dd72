"""Globs on one component, and how a step is split into whole pieces and gaps."""

from __future__ import annotations

import fnmatch
import random
import time

import pytest

from nri_warmup.inject.files import matches
from nri_warmup.inject.large import Steps, split
from nri_warmup.inject.work import STEP, Geometry
from nri_warmup.kernel.pagecache import PIECE
from nri_warmup.kernel.syscalls import PAGE_SIZE as P

N = PIECE // P


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("model.bin", "*.bin", True),
        ("model.bin", "model.*", True),
        ("model.bin", "m?del.bin", True),
        ("model.bin", "*", True),
        (".hidden", "*", False),
        (".hidden", ".*", True),
        (".hidden", "?hidden", False),
        ("a", "[abc]", True),
        ("b", "[a-c]", True),
        ("d", "[a-c]", False),
        ("d", "[!a-c]", True),
        ("d", "[^a-c]", True),
        ("]", "[]]", True),
        ("-", "[a-]", True),
        ("[x", "[x", True),
        ("x", "[x", False),
        ("model-00001-of-00002.safetensors", "model-*-of-*.safetensors", True),
        ("", "*", True),
        ("", "?", False),
        ("ab", "a", False),
        ("a", "a**", True),
    ],
)
def test_matches(name: str, pattern: str, expected: bool) -> None:
    assert matches(name, pattern) is expected


def test_matches_as_fnmatch_does() -> None:
    rng = random.Random(3)
    for _ in range(5000):
        name = "".join(rng.choice("ab-") for _ in range(rng.randrange(8)))
        pattern = "".join(rng.choice(("a", "b", "-", "*", "?", "[ab]", "[!a]")) for _ in range(rng.randrange(7)))
        assert matches(name, pattern) == fnmatch.fnmatchcase(name, pattern), (name, pattern)


def test_a_malicious_pattern_costs_little() -> None:
    begin = time.process_time()
    assert not matches("a" * 255, "*a" * 100 + "b")
    assert time.process_time() - begin < 1.0


def vector(*absent: tuple[int, int], pages: int) -> bytes:
    data = bytearray(b"\1" * pages)
    for start, end in absent:
        data[start:end] = bytes(end - start)
    return bytes(data)


def test_split_of_a_cold_step_is_one_range() -> None:
    assert split(bytes(8 * N), 0, STEP, STEP, PIECE) == ([(0, STEP)], [], STEP)
    size = 3 * PIECE + 5000
    assert split(bytes(3 * N + 2), 0, size, size, PIECE) == ([(0, size)], [], size)


def test_split_of_a_warm_step_is_nothing() -> None:
    assert split(b"\1" * 8 * N, STEP, 2 * STEP, 4 * STEP, PIECE) == ([], [], 0)


def test_split_keeps_away_from_pieces_that_are_there_in_part() -> None:
    seen = vector((0, N), (N + 3, 3 * N), (5 * N, 6 * N), pages=8 * N)
    bodies, gaps, absent = split(seen, STEP, 2 * STEP, 4 * STEP, PIECE)
    assert bodies == [(STEP, STEP + PIECE), (STEP + 2 * PIECE, STEP + 3 * PIECE), (STEP + 5 * PIECE, STEP + 6 * PIECE)]
    assert gaps == [(STEP + PIECE + 3 * P, STEP + 2 * PIECE)]
    assert absent == (4 * N - 3) * P


def test_split_of_a_data_range_that_begins_within_a_piece() -> None:
    start, size = 7 * P, 10 * PIECE
    bodies, gaps, absent = split(bytes(2 * N - 7), start, 2 * PIECE, size, PIECE)
    assert bodies == [(PIECE, 2 * PIECE)] and gaps == [(start, PIECE)]
    assert absent == 2 * PIECE - start


def test_split_by_random_against_a_plain_model() -> None:
    rng = random.Random(11)
    for _ in range(200):
        first, pieces = rng.randrange(3) * PIECE, rng.randrange(1, 5)
        end = first + pieces * PIECE - rng.choice((0, 0, 1, P, 1000 + P))
        seen = b"".join(rng.choice((b"\0" * N, b"\1" * N, b"\0" * 9 + b"\1" * (N - 9))) for _ in range(pieces))
        seen = seen[: -(-(end - first) // P)]
        bodies, gaps, absent = split(seen, first, end, end, PIECE)
        taken = [page for a, b in (*bodies, *gaps) for page in range(a // P, -(-b // P))]
        assert sorted(taken) == [first // P + i for i, there in enumerate(seen) if not there]
        assert absent == sum(b - a for a, b in (*bodies, *gaps))
        assert all(a % PIECE == 0 and (b % PIECE == 0 or b == end) for a, b in bodies)
        assert all(b - a < PIECE for a, b in gaps)


def test_steps_are_cut_at_multiples() -> None:
    assert list(Steps([], STEP)) == []
    assert list(Steps([(0, 2 * STEP + 5)], STEP)) == [(0, STEP), (STEP, 2 * STEP), (2 * STEP, 2 * STEP + 5)]
    assert list(Steps([(P, STEP + P), (5 * STEP, 5 * STEP + P)], STEP)) == [
        (P, STEP),
        (STEP, STEP + P),
        (5 * STEP, 5 * STEP + P),
    ]


MIB = 1 << 20


@pytest.mark.parametrize(
    ("page", "pmd", "huge", "piece"),
    [
        (4 << 10, 2 * MIB, True, 2 * MIB),
        (16 << 10, 32 * MIB, True, 32 * MIB),
        (64 << 10, 512 * MIB, False, 2 * MIB),  # no folio of the page cache is that large
    ],
)
def test_units_follow_the_page_size(page: int, pmd: int, huge: bool, piece: int) -> None:
    geometry = Geometry(pmd, page_bytes=page)
    assert (geometry.huge, geometry.piece, geometry.overshoot) == (huge, piece, (3 if huge else 2) * piece)
    assert geometry.step >= geometry.overshoot, "what a step reads past its end must have been looked at before"
    assert geometry.step % geometry.piece == 0 and geometry.step <= 96 * MIB
    plain = Geometry(pmd, huge=False, page_bytes=page)
    assert (plain.huge, plain.piece, plain.step) == (False, 2 * MIB, STEP)


def test_pieces_of_another_size() -> None:
    """A page that is there spoils a piece of 32 MiB whole: a part of it would be a split folio."""
    piece = 32 * MIB
    seen = vector((0, 3), (4, 2 * piece // P), pages=2 * piece // P)
    bodies, gaps, _ = split(seen, 0, 2 * piece, 4 * piece, piece)
    assert bodies == [(piece, 2 * piece)]
    assert gaps == [(0, 3 * P), (4 * P, piece)]
