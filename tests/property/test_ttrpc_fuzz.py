"""A short run of the fuzz target, so that it does not rot; for a long one see tests/fuzz/fuzz_ttrpc.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nri_warmup.nri import scan
from tests.fuzz import fuzz_ttrpc

FUZZ = Path(__file__).resolve().parents[1] / "fuzz/fuzz_ttrpc.py"


def test_random_mutations_of_valid_traffic() -> None:
    assert fuzz_ttrpc.run_random(20.0, seed=1, most=3000) == 3000


def test_it_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, FUZZ, "--random", "--seconds", "0.2", "--seed", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "nothing broken" in done.stdout, done.stderr


def test_it_would_find_something(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a check taken out of the reader, the same run fails and says by what."""

    def careless(payload: bytes) -> int:
        return payload[payload[0]]

    monkeypatch.setattr(fuzz_ttrpc, "event_number", careless)
    assert scan.event_number is not careless
    with pytest.raises(IndexError):
        fuzz_ttrpc.run_random(20.0, seed=1, most=3000)
    assert "broken by" in capsys.readouterr().err
