"""What is rendered reads back as the same value, within what the rendering rounds to; no text raises anything else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_warmup import units


@given(st.integers(0, units.MAX_BYTES >> 1))
def test_size(n_bytes: int) -> None:
    assert units.parse_size(units.render_size(n_bytes)) == pytest.approx(n_bytes, rel=1e-3)


@given(st.floats(0.001, 1e7))
def test_duration(seconds: float) -> None:
    assert units.parse_duration(units.render_duration(seconds)) == pytest.approx(seconds, rel=0.01, abs=0.5)


@given(st.frozensets(st.integers(0, 500)))
def test_id_list(ids: frozenset[int]) -> None:
    assert units.parse_id_list(units.render_id_list(ids)) == ids


@given(st.text() | st.from_regex(r"[0-9.]{0,30}[A-Za-zµ]{0,4}", fullmatch=True))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (units.parse_size, units.parse_duration, units.parse_id_list):
        with contextlib.suppress(ValueError):
            parse(text)
