"""Sizes, durations and id lists: what is read, what is refused, and that what is printed can be read again."""

from __future__ import annotations

import pytest

from nri_warmup import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1", 1),
        ("2Gi", 2 << 30),
        ("2GiB", 2 << 30),
        (" 1.5G ", 1_500_000_000),
        ("512 Mi", 512 << 20),
        ("1k", 1000),
        ("1K", 1000),
        ("1Ki", 1024),
        ("7Ei", 7 << 60),
        ("9223372036854775807", units.MAX_BYTES),
    ],
)
def test_size_is_read(text: str, expected: int) -> None:
    assert units.parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 gigs",
        "Gi",
        "-1",
        "+1",
        "1e9",
        "0x10",
        "1.G",
        ".5G",
        "٣",
        "1Gi1",
        "8Ei",
        "9" * 400,
        "9" * 400 + ".0Gi",
        "1G\0",
    ],
)
def test_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size; write|is larger than"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [(0, "0"), (1023, "1023"), (1024, "1Ki"), (1536 << 20, "1.5Gi"), (1 << 44, "16Ti"), (1 << 62, "4Ei")],
)
def test_size_is_rendered(n_bytes: int, expected: str) -> None:
    assert units.render_size(n_bytes) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0.0), ("300ms", 0.3), ("90s", 90.0), ("1m30s", 90.0), ("1.5h", 5400.0), (" 5us ", 5e-6), ("5µs", 5e-6)],
)
def test_duration_is_read(text: str, expected: float) -> None:
    assert units.parse_duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "30", "1 m", "s", "-1s", "1d", "1m 30s", "٣s", "9" * 400 + "s", "1.s"])
def test_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (0.3, "300ms"),
        (0.9996, "1s"),
        (1.5, "1.5s"),
        (59.96, "1m"),
        (90, "1m30s"),
        (3600, "1h"),
        (3661, "1h1m1s"),
        (-2, "-2s"),
    ],
)
def test_duration_is_rendered(seconds: float, expected: str) -> None:
    assert units.render_duration(seconds) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", set()), ("\n", set()), ("0", {0}), ("0-3,8\n", {0, 1, 2, 3, 8}), ("5,5", {5}), ("3-3", {3})],
)
def test_id_list_is_read(text: str, expected: set[int]) -> None:
    assert units.parse_id_list(text) == expected


@pytest.mark.parametrize("text", ["a", "3-1", "0-", "-3", "0-99999999", "1;2", "٣"])
def test_id_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        units.parse_id_list(text)
