"""Bytes, durations and cpu/node lists, to and from text. Pure.

The accepted forms are those of Kubernetes quantities for sizes (``512Mi``, ``2Gi``, ``1.5G``), Go durations for times
(``300ms``, ``1m30s``) and the kernel's list format for cpus and nodes (``0-3,8``).
"""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*([kKMGTPE]i?|)B?")
_SIZE_UNITS = {
    "": 1,
    "k": 1000,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "P": 1000**5,
    "E": 1000**6,
    "Ki": 1 << 10,
    "ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "Pi": 1 << 50,
    "Ei": 1 << 60,
}
_DURATION_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|us|µs|h|m|s)")
_DURATION_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

MAX_BYTES = (1 << 63) - 1
MAX_LIST_ID = 1 << 16


def parse_size(text: str) -> int:
    """``"2Gi"`` -> 2147483648 bytes. Raises ValueError with what to write instead."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number and Ki, Mi, Gi or Ti, for example 2Gi")
    number, unit = match.groups()
    value = int(number) * _SIZE_UNITS[unit] if "." not in number else int(float(number) * _SIZE_UNITS[unit])
    if value > MAX_BYTES:
        raise ValueError(f"{text!r} is larger than 8Ei")
    return value


def render_size(n_bytes: int) -> str:
    """2147483648 -> ``"2Gi"``; three significant digits where the number is not whole."""
    value = float(n_bytes)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if abs(value) < 1024:
            return f"{value:.4g}{suffix}" if suffix else str(n_bytes)
        value /= 1024
    return f"{value:.4g}Ei"


def parse_duration(text: str) -> float:
    """``"1m30s"`` -> 90.0 seconds. A bare number is refused, for its unit would be a guess; ``"0"`` is zero."""
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    total, position = 0.0, 0
    while match := _DURATION_PART.match(stripped, position):
        total += float(match[1]) * _DURATION_UNITS[match[2]]
        position = match.end()
    if position == 0 or position != len(stripped):
        raise ValueError(f"{text!r} is not a duration; write a number and ms, s, m or h, for example 90s")
    return total


def render_duration(seconds: float) -> str:
    """90.0 -> ``"1m30s"``; below a second in milliseconds."""
    if seconds < 0:
        return "-" + render_duration(-seconds)
    if seconds == 0:
        return "0s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 59.95:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return "".join(f"{n}{u}" for n, u in ((hours, "h"), (minutes, "m"), (secs, "s")) if n)


def parse_id_list(text: str) -> frozenset[int]:
    """The kernel's list format, ``"0-3,8"`` -> {0, 1, 2, 3, 8}. Empty text is the empty set."""
    ids: set[int] = set()
    for part in text.strip().split(","):
        piece = part.strip()
        if not piece:
            continue
        first, dash, last = piece.partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise ValueError(f"{piece!r} is not a cpu or node range; write for example 0-3,8")
        low, high = int(first), int(last) if dash else int(first)
        if high < low or high >= MAX_LIST_ID:
            raise ValueError(f"{piece!r} is not a range of cpus or nodes below {MAX_LIST_ID}")
        ids.update(range(low, high + 1))
    if not ids and text.strip(" ,\n"):
        raise ValueError(f"{text!r} is not a cpu or node list; write for example 0-3,8")
    return frozenset(ids)


def render_id_list(ids: frozenset[int] | set[int]) -> str:
    """{0, 1, 2, 3, 8} -> ``"0-3,8"``."""
    parts: list[str] = []
    run: list[int] = []
    for i in [*sorted(ids), None]:
        if run and (i is None or i != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if i is not None:
            run.append(i)
    return ",".join(parts)
