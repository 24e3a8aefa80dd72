"""Annotations of one container -> WarmupRequest. Pure, and never raises for what a workload's author wrote.

``<key>.nri-warmup.dev/container.<name>`` beats ``/pod`` beats the bare key, for every key on its own. The value under
``/pod`` may be a map from container name to value, for names that 63 characters after the slash cannot hold: entries
of it count as addressed to that container, below a ``/container.<name>`` of its own. The map is read here, in the small
part of YAML that ``parse_named_values`` describes, so that no third-party parser sees a tenant's text on the way of a
reply.

What is asked is understood here; whether it is allowed is for policy to say. A RequestError never leaves: each
becomes a Complaint with its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import partial
from typing import TypeVar

from nri_warmup.config import ANNOTATION_KEYS, is_pattern, is_profile_name
from nri_warmup.errors import RequestError
from nri_warmup.fields import nearest_word
from nri_warmup.model.lifecycle import Container, Pairs, Pod
from nri_warmup.model.profile import Gate, Residency
from nri_warmup.model.request import Complaint, WarmupRequest
from nri_warmup.units import parse_duration, parse_size

E = TypeVar("E", bound=Enum)
N = TypeVar("N", int, float)
Complain = Callable[[str], None]

DOMAIN = "nri-warmup.dev"
PLANNED = f"planned.{DOMAIN}"
"""Our own marker on a container that has a plan: its profile's name. Never a request."""

MAX_COMPONENT = 255
"""NAME_MAX of every Linux file system; a longer one matches nothing and costs time in a glob."""
MAX_COMPLAINTS = 16
MAX_VALUE = 32 << 10
"""Characters of one annotation, and"""
MAX_LINES = 1024
"""lines of it: the runtime waits for the reply meanwhile, and a tenant may write 256 KiB."""

_KNOWN = tuple(f"{key}.{DOMAIN}" for key in ANNOTATION_KEYS)
_CONTAINER = "/container."


class _Scope(IntEnum):
    BARE = 0
    POD = 1
    POD_ENTRY = 2
    CONTAINER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    scope: _Scope
    annotation: str
    value: str


NOTHING_ASKED = WarmupRequest()
"""The request of nearly every container."""


class _Complaints:
    """The first of them, and how many more there were; those cost nothing to make."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._kept: list[Complaint] = []
        self._left = 0

    def add(self, annotation: str, message: str | Callable[[], str]) -> None:
        if len(self._kept) >= MAX_COMPLAINTS:
            self._left += 1
            return
        text = message if isinstance(message, str) else message()
        place = f"{_clean(annotation)} (container {_clean(self._container)})"
        self._kept.append(Complaint(place=place, message=text))

    def all(self) -> tuple[Complaint, ...]:
        if not self._left:
            return tuple(self._kept)
        return (*self._kept, Complaint(place=f"*.{DOMAIN}", message=f"{self._left} more complaints"))


def parse_request(pod: Pod, container: Container) -> WarmupRequest:
    """What the annotations of ``pod``, and of ``container`` itself (Podman has only these), ask for this container."""
    if not any(DOMAIN in key for items in (pod.annotations, container.annotations) for key, _ in items):
        return NOTHING_ASKED
    complaints = _Complaints(container.name)
    found: dict[str, _Found] = {}
    for items in (pod.annotations, container.annotations):
        for key, candidate in _candidates(items, container.name, complaints):
            held = found.get(key)
            if held is None or candidate.scope >= held.scope:
                found[key] = candidate
    request = WarmupRequest(named=any(item.scope >= _Scope.POD_ENTRY for item in found.values()))
    for key in ANNOTATION_KEYS:
        if key in found:
            annotation = found[key].annotation
            try:
                request = _READERS[key](request, found[key].value, partial(complaints.add, annotation))
            except RequestError as error:
                complaints.add(annotation, str(error))
    return replace(request, complaints=complaints.all())


def _candidates(items: Pairs, container: str, complaints: _Complaints) -> Iterator[tuple[str, _Found]]:
    """The annotations that are meant for this container. Keys we do not know become complaints."""
    for annotation, value in items:
        name, slash, suffix = annotation.partition("/")
        if not (name == DOMAIN or name.endswith(f".{DOMAIN}")) or annotation == PLANNED:
            continue
        key = name.removesuffix(f".{DOMAIN}")
        if key not in ANNOTATION_KEYS:
            complaints.add(annotation, partial(_unknown, suffix if name == DOMAIN else key))
            continue
        try:
            found = _addressed(annotation, slash + suffix, value, container)
        except RequestError as error:
            complaints.add(annotation, str(error))
            continue
        if found is not None:
            yield key, found


def _addressed(annotation: str, suffix: str, value: str, container: str) -> _Found | None:
    """The value if it is meant for ``container``. RequestError for a suffix that addresses nothing or a broken map."""
    if suffix.startswith(_CONTAINER):
        if not container or suffix != _CONTAINER + container:
            return None
        scope = _Scope.CONTAINER
    elif suffix == "/pod":
        scope = _Scope.POD
    elif not suffix:
        scope = _Scope.BARE
    else:
        raise RequestError(f"{_clean(suffix)} addresses nothing; write /pod, /container.<name> or no suffix")
    if len(value) > MAX_VALUE or value.count("\n") > MAX_LINES:
        raise RequestError(f"more than {MAX_VALUE} characters or {MAX_LINES} lines; not read")
    if scope is _Scope.POD and (entries := parse_named_values(value)) is not None:
        if container not in entries:
            return None
        scope, value = _Scope.POD_ENTRY, entries[container]
    return _Found(scope=scope, annotation=annotation, value=value)


def _unknown(key: str) -> str:
    near = nearest_word(key, ANNOTATION_KEYS)
    if near is not None:
        return f"unknown annotation; did you mean {near}.{DOMAIN}?"
    return f"unknown annotation; known: {', '.join(_KNOWN)}"


# --- values -----------------------------------------------------------------------------------------------------------


def _read_profile(request: WarmupRequest, text: str, complain: Complain) -> WarmupRequest:
    name = text.strip()
    if not name:
        return replace(request, opt_out=True)
    if not is_profile_name(name):
        raise RequestError(f"{_show(name)} is not a profile's name")
    return replace(request, profile=name)


def _read_files(request: WarmupRequest, text: str, complain: Complain) -> WarmupRequest:
    patterns: dict[str, None] = {}
    for line in text.split("\n"):
        pattern = line.strip()
        if not pattern:
            continue
        try:
            patterns[_path_pattern(pattern)] = None
        except RequestError as error:
            complain(str(error))
    if not patterns:
        raise RequestError("no usable pattern; write absolute paths or globs, one a line (an empty profile opts out)")
    return replace(request, files=tuple(patterns))


def _path_pattern(text: str) -> str:
    if not is_pattern(text):
        raise RequestError(f"{_show(text)} is not an absolute path pattern without '..'; write for example /models/**")
    if any(len(component) > MAX_COMPONENT for component in text.split("/")):
        raise RequestError(f"{_show(text)} has a component of more than {MAX_COMPONENT} characters, no file has")
    return text


def _read_gate(request: WarmupRequest, text: str, complain: Complain) -> WarmupRequest:
    return replace(request, gate=_member(Gate, text))


def _read_deadline(request: WarmupRequest, text: str, complain: Complain) -> WarmupRequest:
    seconds = _parsed(parse_duration, text)
    if seconds <= 0:
        raise RequestError(f"{_show(text)} is no time at all; write for example 90s")
    return replace(request, deadline_s=seconds)


def _read_residency(request: WarmupRequest, text: str, complain: Complain) -> WarmupRequest:
    return replace(request, residency=_member(Residency, text))


def _read_max_bytes(request: WarmupRequest, text: str, complain: Complain) -> WarmupRequest:
    size = _parsed(parse_size, text)
    if size <= 0:
        raise RequestError(f"{_show(text)} would warm nothing; an empty profile opts out")
    return replace(request, max_bytes=size)


_READERS = {
    "profile": _read_profile,
    "files": _read_files,
    "gate": _read_gate,
    "deadline": _read_deadline,
    "residency": _read_residency,
    "max-bytes": _read_max_bytes,
}


def _member(kind: type[E], text: str) -> E:
    words = tuple(str(member.value) for member in kind)
    for member in kind:
        if member.value == text.strip():
            return member
    raise RequestError(f"{_show(text)} is not one of {', '.join(words)}")


def _parsed(parse: Callable[[str], N], text: str) -> N:
    if len(text) > 80:
        raise RequestError(f"{_show(text)} is too long for a number with a unit")
    try:
        return parse(text)
    except ValueError as error:
        raise RequestError(str(error)) from None


# --- the map under /pod -----------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"""(?:"([^"\\]+)"|'([^']+)'|([A-Za-z0-9][-A-Za-z0-9_.]*))[ ]*:(?:[ ]+(.*))?""")
_ITEM = re.compile(r"[ ]*-[ ]+(.*)")
_BLOCK = re.compile(r"\|[-+]?")


def parse_named_values(text: str) -> dict[str, str] | None:
    """A map from container name to value, or None where ``text`` is one plain value. RequestError for a broken map.

    Read are JSON objects, and of YAML: ``name: value`` lines with plain or quoted values, ``name: |`` with indented
    lines below, and ``name:`` with ``- item`` lines below. A list is the same as its items on lines of their own.
    """
    if text.lstrip().startswith("{"):
        return _json_entries(text)
    lines = [line.rstrip() for line in text.split("\n")]
    meaningful = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not meaningful or _ENTRY.fullmatch(meaningful[0]) is None:
        return None
    entries: dict[str, str] = {}
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if not line or line.startswith("#"):
            continue
        match = _ENTRY.fullmatch(line)
        if match is None:
            raise RequestError(f"{_show(line)} is not 'container: value'")
        name = match[1] or match[2] or match[3]
        if name in entries:
            raise RequestError(f"container {_clean(name)} is given twice")
        below = _block(lines, position)
        position += len(below)
        entries[name] = _entry_value(_uncomment(match[4] or ""), below)
    return entries


def _json_entries(text: str) -> dict[str, str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError("a map that is not JSON; write one 'container: value' a line") from None
    entries = {}
    for name, entry in value.items():
        lines = entry if isinstance(entry, list) else [entry]
        if not all(isinstance(line, str) for line in lines):
            raise RequestError(f"the value of container {_clean(name)} is not text")
        entries[name] = "\n".join(lines)
    return entries


def _block(lines: list[str], start: int) -> list[str]:
    """The lines from ``start`` that belong to the entry above: indented, empty, or list items."""
    end = start
    while end < len(lines) and (not lines[end] or lines[end].startswith((" ", "- "))):
        end += 1
    return lines[start:end]


def _entry_value(value: str, below: list[str]) -> str:
    content = [line for line in below if line.strip()]
    if _BLOCK.fullmatch(value):
        return "\n".join(line.strip() for line in content)
    if value and content:
        raise RequestError(f"{_show(content[0])} continues a value; write '|' and the lines below it")
    if not value and content:
        items = [_ITEM.fullmatch(line) for line in content if not line.lstrip().startswith("#")]
        if not all(items):
            raise RequestError(f"{_show(content[0])} is not a list item; write '- value'")
        return "\n".join(_scalar(_uncomment(item[1])) for item in items if item)
    return _scalar(value)


def _uncomment(text: str) -> str:
    if text.startswith("#"):
        return ""
    if text[:1] in ("'", '"'):
        return text.strip()
    return text.split(" #", 1)[0].strip()


def _scalar(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        inner = text[1:-1]
        if text[0] in inner or "\\" in inner:
            raise RequestError(f"{_show(text)}: quotes and escapes inside quotes are not read")
        return inner
    if text[:1] in tuple("&*!|>%@`[]{},'\"?"):
        raise RequestError(f"{_show(text)}: of YAML only plain and quoted values, '|' blocks and '- ' lists are read")
    return text


def _show(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


def _clean(text: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 120 else shown[:119] + "…"
