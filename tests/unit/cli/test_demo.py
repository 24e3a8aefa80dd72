"""The demo's arithmetic and its server, without any runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nri_warmup.cli.demo import SERVER, Round, ask, listening, summarize, wait_until


def _round(first: float, total: float, major: int, coverage: float | None, owned: float | None) -> Round:
    return Round(
        first_request_ms=first,
        total_ms=total,
        major_faults=major,
        minor_faults=1,
        coverage=coverage,
        owned=owned,
        large_folios=0.5,
    )


def test_medians_of_times_and_the_worst_of_shares() -> None:
    cold = [_round(ms, 2 * ms, 9, None, None) for ms in (100, 300, 200)]
    warm = [_round(ms, 4 * ms, 0, c, 0.99) for ms, c in ((10, 1.0), (30, 0.9), (20, 1.0))]
    result = summarize("exec", 1, cold, warm)
    assert result["cold_first_request_ms"] == 200 and result["warm_first_request_ms"] == 20
    assert result["ratio"] == 10 and result["coverage"] == 0.9 and result["owned"] == 0.99
    assert result["warm_total_ms"] == 80 and result["major_faults_warm"] == 0


def test_what_is_unknown_is_null_and_not_zero() -> None:
    warm = [_round(1, 1, 0, 1.0, None)]
    assert summarize("exec", 1, warm, warm)["owned"] is None


def test_the_server_touches_every_page(tmp_path: Path) -> None:
    model, address = tmp_path / "m", tmp_path / "s"
    model.write_bytes(os.urandom(3 << 20))
    server = subprocess.Popen([sys.executable, "-I", "-S", str(SERVER), str(model), str(address)])
    try:
        wait_until(lambda: listening(address), 20, "the server")
        _, major, minor = ask(address)
        assert major + minor >= (3 << 20) // (2 << 20)
        again = ask(address)
        assert again[1] == 0
    finally:
        server.kill()
        server.wait()
