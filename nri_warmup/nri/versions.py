"""Which runtime and which NRI is on the other side. A plugin is not told before NRI 0.12; it is inferred from what
else is sent.

Owns the parsing of Configure's request, the version table and what a version means for the event mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nri_warmup.nri.events import MASK_FROM_0_10, MASK_TO_0_9
from nri_warmup.ttrpc.wire import LEN, VARINT, fields, signed, text

Version = tuple[int, int, int]

DEFAULT_REQUEST_TIMEOUT_S = 2.0
DEFAULT_REGISTRATION_TIMEOUT_S = 5.0

# First version of the runtime -> NRI in it, from their go.mod files.
_CONTAINERD: tuple[tuple[Version, Version], ...] = (
    ((1, 7, 0), (0, 3, 0)),
    ((1, 7, 7), (0, 4, 0)),
    ((1, 7, 14), (0, 6, 0)),
    ((1, 7, 16), (0, 6, 1)),
    ((1, 7, 26), (0, 8, 0)),
    ((2, 0, 0), (0, 8, 0)),
    ((2, 2, 0), (0, 10, 0)),
    ((2, 2, 1), (0, 11, 0)),
    ((2, 3, 0), (0, 12, 0)),
)
_CRIO: tuple[tuple[Version, Version], ...] = (
    ((1, 26, 0), (0, 2, 0)),
    ((1, 26, 2), (0, 3, 0)),
    ((1, 29, 0), (0, 5, 0)),
    ((1, 29, 2), (0, 6, 0)),
    ((1, 31, 0), (0, 6, 1)),
    ((1, 32, 0), (0, 9, 0)),
    ((1, 34, 0), (0, 10, 0)),
    ((1, 35, 0), (0, 11, 0)),
    ((1, 37, 0), (0, 12, 0)),
)
_TABLES = {"containerd": _CONTAINERD, "cri-o": _CRIO, "crio": _CRIO}

_NUMBERS = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """Who called Configure. ``nri_told`` is whether the version was sent (0.12 on) rather than inferred."""

    name: str = ""
    version: str = ""
    nri_version: Version = (0, 3, 0)
    nri_told: bool = False
    registration_timeout_s: float = DEFAULT_REGISTRATION_TIMEOUT_S
    request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S

    @property
    def valid_mask(self) -> int:
        """Event bits that this runtime certainly accepts."""
        return MASK_FROM_0_10 if self.nri_version >= (0, 10, 0) else MASK_TO_0_9

    @property
    def takes_unsolicited_updates(self) -> bool:
        """Up to 0.12.0 an UpdateContainers that meets an event can lock runtime and library against each other for
        good.
        """
        return self.nri_version > (0, 12, 0)


def parse_version(version: str) -> Version | None:
    """The leading numbers of whatever a distribution makes of a version: ``1.7.24~ds1``, ``v2.1.9``,
    ``2.1.9+unknown``.
    """
    found = _NUMBERS.search(version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def infer_nri_version(name: str, version: str, request_timeout_ms: int, nri_version: str) -> Version:
    """The NRI version: as told, else from the runtime's version, bounded by what the message itself shows.

    Request timeouts are sent from 0.7 on, the NRI version from 0.12 on. What is unknown counts as old.
    """
    if told := parse_version(nri_version):
        return told
    low, high = ((0, 7, 0), (0, 11, 99)) if request_timeout_ms > 0 else ((0, 2, 0), (0, 6, 1))
    runtime = parse_version(version)
    found: Version | None = None
    for since, nri in _TABLES.get(name, ()):
        if runtime is not None and runtime >= since:
            found = nri
    return low if found is None else min(max(found, low), high)


def parse_configure(payload: bytes) -> tuple[str, RuntimeInfo]:
    """(config text, runtime) of a ConfigureRequest. Raises RemoteProtocolError."""
    strings = dict.fromkeys((1, 2, 3, 6), "")
    numbers = {4: 0, 5: 0}
    for number, kind, value, end in fields(payload, 0, len(payload)):
        if kind == LEN and number in strings:
            strings[number] = text(payload, value, end)
        elif kind == VARINT and number in numbers:
            numbers[number] = signed(value)
    config, name, version, told = strings.values()
    registration, request = numbers.values()
    return config, RuntimeInfo(
        name=name,
        version=version,
        nri_version=infer_nri_version(name, version, request, told),
        nri_told=parse_version(told) is not None,
        registration_timeout_s=registration / 1000 if registration > 0 else DEFAULT_REGISTRATION_TIMEOUT_S,
        request_timeout_s=request / 1000 if request > 0 else DEFAULT_REQUEST_TIMEOUT_S,
    )
