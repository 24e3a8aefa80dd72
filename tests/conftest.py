"""What all levels share: in CI a skip must be expected. ``tests/allowed_skips.txt`` lists what may be skipped, and why.

With NRI_WARMUP_NO_SKIP=1 a skipped test that no line there covers is a failure.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path

import pytest

_ALLOWED = Path(__file__).with_name("allowed_skips.txt")


def allowed_skips() -> list[tuple[str, str]]:
    """(glob on the test's id, reason) of each line ``GLOB  # reason``."""
    rows = []
    for line in _ALLOWED.read_text().splitlines():
        pattern, _, reason = line.partition("#")
        if pattern.strip():
            if not reason.strip():
                raise pytest.UsageError(f"{_ALLOWED.name}: {pattern.strip()} has no reason")
            rows.append((pattern.strip(), reason.strip()))
    return rows


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    strict = os.environ.get("NRI_WARMUP_NO_SKIP") == "1"
    allowed = any(fnmatch.fnmatch(item.nodeid, pattern) for pattern, _ in allowed_skips())
    if strict and report.skipped and not hasattr(report, "wasxfail") and not allowed:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and tests/allowed_skips.txt does not allow it: {why}"
    return report
