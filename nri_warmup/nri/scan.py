"""Looks at an event's bytes to see whether it can concern us, without decoding them.

On most nodes most containers are none of ours, and finding that out costs a tenth of decoding. Owns the search for the
operator's byte strings, for ids, and the sifting of Synchronize. The search may find too much (a byte string that
stands somewhere else in the message), never too little.
"""

from __future__ import annotations

from collections.abc import Sequence

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.ttrpc.wire import LEN, VARINT, fields, read_varint, text

Interest = tuple[frozenset[bytes], ...]
"""Any of these conjunctions must be contained whole; an empty conjunction matches everything, no conjunction nothing.
"""


def matches(interest: Interest, payload: bytes) -> bool:
    for conjunction in interest:
        for token in conjunction:
            if token not in payload:
                break
        else:
            return True
    return False


def event_number(payload: bytes) -> int:
    """The ``event`` of a StateChangeEvent, 0 where it has none."""
    if payload[:1] == b"\x08" and len(payload) > 1 and payload[1] < 0x80:
        return payload[1]
    for number, kind, value, _ in fields(payload, 0, len(payload)):
        if number == 1 and kind == VARINT:
            return value
    return 0


def id_inside(payload: bytes, field: int) -> str:
    """The ``id`` (field 1) of the pod or container that is field ``field`` of an event; "" where there is none."""
    for number, kind, start, end in fields(payload, 0, len(payload)):
        if number == field and kind == LEN:
            return string_inside(payload, start, end, 1)
    return ""


def string_inside(payload: bytes, start: int, end: int, field: int) -> str:
    """A string field of the message at ``payload[start:end]``; low numbers stand first and are found at once."""
    for number, kind, value, stop in fields(payload, start, end):
        if number == field and kind == LEN:
            return text(payload, value, stop)
    return ""


class SyncSieve:
    """The parts of one Synchronize, kept as they came until the last; then only what may match is taken out.

    ``add`` is quick, so that the runtime has its answer at once; ``sift`` does the search. A container matches by its
    own bytes and its pod's together, whichever part the pod came in.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._pods: list[tuple[int, int, int]] = []
        self._containers: list[tuple[int, int, int]] = []

    @property
    def totals(self) -> tuple[int, int]:
        """(pods, containers) of all parts so far."""
        return len(self._pods), len(self._containers)

    @property
    def size(self) -> int:
        return sum(map(len, self._parts))

    def add(self, payload: bytes) -> bool:
        """Take one SynchronizeRequest; True if it says that another part follows. Raises RemoteProtocolError."""
        part = len(self._parts)
        pods, containers = self._pods, self._containers
        more = False
        pos, end = 0, len(payload)
        while pos < end:
            key = payload[pos]
            if key == 0x0A or key == 0x12:
                size, start = read_varint(payload, pos + 1)
                pos = start + size
                if pos > end:
                    raise RemoteProtocolError("a field runs past the end of the message")
                (pods if key == 0x0A else containers).append((part, start, pos))
            else:
                number, kind, value, pos = next(fields(payload, pos, end))
                if number == 3 and kind == VARINT:
                    more = bool(value)
        self._parts.append(payload)
        return more

    def sift(self, interest: Interest) -> list[tuple[bytes, bytes]]:
        """(pod, container) as bytes for every container that may match; b"" for a pod that was not listed."""
        if not interest:
            return []
        tokens = sorted(set().union(*interest))
        wanted = [sum(1 << tokens.index(token) for token in conjunction) for conjunction in interest]
        pods: dict[str, tuple[int, int, int, int]] = {}
        for part, start, end in self._pods:
            mask = self._mask(tokens, part, start, end)
            pods[string_inside(self._parts[part], start, end, 1)] = (part, start, end, mask)
        found = []
        for part, start, end in self._containers:
            mask = self._mask(tokens, part, start, end)
            pod = pods.get(string_inside(self._parts[part], start, end, 2))
            if pod is not None:
                mask |= pod[3]
            if any(mask & want == want for want in wanted):
                pod_bytes = self._parts[pod[0]][pod[1] : pod[2]] if pod is not None else b""
                found.append((pod_bytes, self._parts[part][start:end]))
        return found

    def _mask(self, tokens: Sequence[bytes], part: int, start: int, end: int) -> int:
        payload = self._parts[part]
        mask = 0
        for bit, token in enumerate(tokens):
            if payload.find(token, start, end) >= 0:
                mask |= 1 << bit
        return mask
