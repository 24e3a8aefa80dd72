"""A loaded mapping -> Config. Pure: reading the YAML text is the edge's part (``daemon/configfile.py``).

Owns what the operator may write and every complaint about it. A complaint names the place and, for a key or a name that
is not known, the nearest one that is. ``config.schema.json`` beside this file says the same to editors and CI; what a
schema cannot say (names that refer to each other, a size beyond 8Ei) is checked here alone, see docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import NoReturn, TypeVar

from nri_warmup.errors import ConfigError
from nri_warmup.model.profile import (
    Config,
    Gate,
    Limits,
    MatchExpression,
    Mode,
    NodeLimits,
    OnError,
    Operator,
    Profile,
    Residency,
    Selector,
)
from nri_warmup.units import parse_duration, parse_size

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Enum)
Parse = Callable[[object, str], T]
"""(value, place) -> T; raises ConfigError."""

ANNOTATION_KEYS = ("profile", "files", "gate", "deadline", "residency", "max-bytes")
MATCH_KEYS = ("namespace", "container", "image", "runtime-handler")
MAX_LIST = 1000
MAX_TEXT = 4096
MAX_COUNT = 1_000_000
START_HOLD_S = 0.3
"""How long ``gate: start`` holds where the profile does not say: it holds the runtime's lock meanwhile."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"label:[^\x00-\x20\x7f]{1,317}")
_PATTERN = re.compile(r"(?!.*/\.\.(/|$))/[^\x00-\x1f\x7f]{0,4095}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_DEFAULT_PROFILES = (Profile(name="model", files=("/mnt/models/**", "/models/**", "/model/**")),)
_VALUED = (Operator.IN, Operator.NOT_IN, Operator.MATCHES)


def default_config() -> Config:
    """What holds where no file was written: one profile ``model`` for annotations to name, and no selector."""
    return Config(profiles=_DEFAULT_PROFILES)


def load_config(mapping: object, *, source: str) -> Config:
    """The operator's file, already parsed from YAML or JSON, as a value. None (an empty file) gives the defaults.

    ``source`` starts every complaint: ``ConfigError("config.yaml: profiles[0].gate: …")``.
    """
    try:
        return _config(mapping, source)
    except ConfigError as error:
        place = f"{source}: {error.place}" if error.place else source
        raise ConfigError(f"{place}: {error}", place=error.place) from None


def nearest(word: str, known: tuple[str, ...]) -> str:
    """The sentence that ends a complaint about an unknown word: the nearest known one, or all of them."""
    match = get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if match:
        return f"did you mean {next(k for k in known if k.lower() == match[0])}?"
    return f"known: {', '.join(known)}" if known else "none is known"


def is_pattern(text: str) -> bool:
    """An absolute path pattern: no ``..`` component, no control character, at most 4096 characters."""
    return _PATTERN.fullmatch(text) is not None


def is_profile_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


# --- sections ---------------------------------------------------------------------------------------------------------


def _config(value: object, source: str) -> Config:
    top = _Section({} if value is None else value, "", _TOP, null_is_absent=True)
    defaults = Config()
    profiles = top.get("profiles", _profiles, _DEFAULT_PROFILES)
    names = tuple(profile.name for profile in profiles)
    selectors = top.get("selectors", _listed(_selector), ())
    for index, selector in enumerate(selectors):
        _known_profile(selector.profile, names, f"selectors[{index}].profile")
    limits = top.get("limits", _limits, Limits())
    for index, name in enumerate(limits.annotation_profiles or ()):
        _known_profile(name, names, f"limits.annotation_profiles[{index}]")
    return Config(
        profiles=profiles,
        selectors=selectors,
        limits=limits,
        node=top.get("node", _node, NodeLimits()),
        skip_namespaces=frozenset(top.get("skip_namespaces", _listed(_text), tuple(defaults.skip_namespaces))),
        own_namespace=top.get("own_namespace", _text_or_empty, ""),
        sandboxed_handlers=top.get("sandboxed_handlers", _listed(_text), defaults.sandboxed_handlers),
        source=source,
    )


def _known_profile(name: str, names: tuple[str, ...], place: str) -> None:
    if name not in names:
        _fail(place, f"there is no profile {name!r}; {nearest(name, names)}")


def _profiles(value: object, place: str) -> tuple[Profile, ...]:
    if isinstance(value, Mapping):
        found = []
        for name, body in value.items():
            text = _name(name, place)
            section = _Section({} if body is None else body, f"{place}.{text}", _PROFILE[1:])
            found.append(_profile(section, text))
        return tuple(found)
    profiles: list[Profile] = []
    for index, item in enumerate(_list(value, place)):
        at = f"{place}[{index}]"
        section = _Section(item, at, _PROFILE)
        profile = _profile(section, section.require("name", _name))
        if profile.name in (other.name for other in profiles):
            _fail(f"{at}.name", f"a profile named {profile.name!r} was declared before")
        profiles.append(profile)
    return tuple(profiles)


def _profile(section: _Section, name: str) -> Profile:
    base = Profile(name=name)
    gate = section.get("gate", _enum(Gate), base.gate)
    return Profile(
        name=name,
        files=_once(section.get("files", _listed(_pattern), base.files)),
        gate=gate,
        deadline_s=section.get("deadline", _positive_duration, base.deadline_s),
        hold_s=section.get("hold", _duration, START_HOLD_S if gate is Gate.START else base.hold_s),
        residency=section.get("residency", _enum(Residency), base.residency),
        on_error=section.get("on_error", _enum(OnError), base.on_error),
        mode=section.get("mode", _enum(Mode), base.mode),
        max_bytes=section.get("max_bytes", _positive_size, base.max_bytes),
        reserve_bytes=section.get("reserve", _size, base.reserve_bytes),
    )


def _selector(value: object, place: str) -> Selector:
    section = _Section(value, place, _SELECTOR)
    labels = section.get("matchLabels", _match_labels, ())
    return Selector(
        profile=section.require("profile", _name),
        match=labels + section.get("matchExpressions", _listed(_expression), ()),
        containers=section.get("containers", _nonempty(_listed(_text)), ()),
    )


def _match_labels(value: object, place: str) -> tuple[MatchExpression, ...]:
    if not isinstance(value, Mapping):
        _fail(place, f"{_kind(value)} where a map of label: value belongs")
    found = []
    for key, wanted in value.items():
        label = _match_key(f"label:{_text(key, place)}", place)
        text = _text_or_empty(wanted, f"{place}.{key}")
        found.append(MatchExpression(key=label, operator=Operator.IN, values=(text,)))
    return tuple(found)


def _expression(value: object, place: str) -> MatchExpression:
    section = _Section(value, place, _EXPRESSION)
    operator = section.require("operator", _enum(Operator))
    values = section.get("values", _listed(_text_or_empty), ())
    if operator in _VALUED and not values:
        _fail(place, f"operator {operator.value} needs values")
    if operator not in _VALUED and section.has("values"):
        _fail(f"{place}.values", f"operator {operator.value} takes no values; remove the key")
    return MatchExpression(key=section.require("key", _match_key), operator=operator, values=values)


def _match_key(value: object, place: str) -> str:
    text = _text(value, place)
    if text in MATCH_KEYS or _LABEL_KEY.fullmatch(text):
        return text
    known = (*MATCH_KEYS, "label:<key>")
    if text.startswith("label:"):
        _fail(place, f"{text!r} is not label: and a label's key")
    _fail(place, f"{text!r} cannot be matched; {nearest(text, known)} (a pod label is written label:{text[:60]})")


def _limits(value: object, place: str) -> Limits:
    section = _Section(value, place, _LIMITS)
    base = Limits()
    return Limits(
        annotation_profiles=section.get("annotation_profiles", _listed(_name), base.annotation_profiles),
        annotation_keys=frozenset(
            section.get("annotation_keys", _listed(_annotation_key), tuple(base.annotation_keys))
        ),
        annotation_gates=frozenset(
            section.get("annotation_gates", _listed(_annotation_gate), tuple(base.annotation_gates))
        ),
        annotation_residencies=frozenset(
            section.get("annotation_residencies", _listed(_enum(Residency)), tuple(base.annotation_residencies))
        ),
        max_bytes=section.get("max_bytes", _positive_size, base.max_bytes),
        max_deadline_s=section.get("max_deadline", _positive_duration, base.max_deadline_s),
        max_files=section.get("max_files", _count, base.max_files),
        max_patterns=section.get("max_patterns", _count, base.max_patterns),
        namespace_bytes=section.get("namespace_bytes", _positive_size, base.namespace_bytes),
        namespace_jobs=section.get("namespace_jobs", _count, base.namespace_jobs),
        jobs=section.get("jobs", _count, base.jobs),
    )


def _annotation_key(value: object, place: str) -> str:
    text = _text(value, place)
    if text not in ANNOTATION_KEYS:
        _fail(place, f"{text!r} is not an annotation; {nearest(text, ANNOTATION_KEYS)}")
    return text


def _annotation_gate(value: object, place: str) -> Gate:
    gate = _enum(Gate)(value, place)
    if gate is Gate.START:
        _fail(place, "start holds the runtime's lock and is never an annotation's choice; write none or hook")
    return gate


def _node(value: object, place: str) -> NodeLimits:
    section = _Section(value, place, _NODE)
    return NodeLimits(reserve_bytes=section.get("reserve", _size, NodeLimits().reserve_bytes))


# --- values -----------------------------------------------------------------------------------------------------------

_TOP = ("profiles", "selectors", "limits", "node", "skip_namespaces", "own_namespace", "sandboxed_handlers")
_PROFILE = (
    "name",
    "files",
    "gate",
    "deadline",
    "hold",
    "residency",
    "on_error",
    "mode",
    "max_bytes",
    "reserve",
)
_SELECTOR = ("profile", "matchLabels", "matchExpressions", "containers")
_EXPRESSION = ("key", "operator", "values")
_LIMITS = (
    "annotation_profiles",
    "annotation_keys",
    "annotation_gates",
    "annotation_residencies",
    "max_bytes",
    "max_deadline",
    "max_files",
    "max_patterns",
    "namespace_bytes",
    "namespace_jobs",
    "jobs",
)
_NODE = ("reserve",)


class _Section:
    """A mapping whose keys are all known. An unknown one is refused before any value is looked at."""

    def __init__(self, value: object, place: str, known: tuple[str, ...], *, null_is_absent: bool = False) -> None:
        if not isinstance(value, Mapping):
            _fail(place, f"{_kind(value)} where a map with {', '.join(known[:3])}… belongs")
        for key in value:
            if not isinstance(key, str) or key not in known:
                _fail(place, f"unknown key {_show(key)}; {nearest(str(key), known)}")
        self._value: dict[str, object] = {k: v for k, v in value.items() if not (null_is_absent and v is None)}
        self._place = place

    def has(self, key: str) -> bool:
        return key in self._value

    def get(self, key: str, parse: Parse[T], default: U) -> T | U:
        if key not in self._value:
            return default
        return parse(self._value[key], f"{self._place}.{key}" if self._place else key)

    def require(self, key: str, parse: Parse[T]) -> T:
        if key not in self._value:
            _fail(self._place, f"{key} is missing")
        return parse(self._value[key], f"{self._place}.{key}")


def _fail(place: str, message: str) -> NoReturn:
    raise ConfigError(message, place=place)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()} (quote it if text is meant)"
    if isinstance(value, (int, float)):
        return f"the number {_show(value)}"
    if isinstance(value, str):
        return f"the text {_show(value)}"
    if isinstance(value, Mapping):
        return "a map"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__} (quote it if text is meant)"


def _text_or_empty(value: object, place: str) -> str:
    if not isinstance(value, str):
        _fail(place, f"{_kind(value)} where text belongs")
    if len(value) > MAX_TEXT or _CONTROL.search(value):
        _fail(place, f"{_show(value)} is longer than {MAX_TEXT} characters or holds a control character")
    return value


def _text(value: object, place: str) -> str:
    text = _text_or_empty(value, place)
    if not text:
        _fail(place, "empty text; remove the key or give a value")
    return text


def _name(value: object, place: str) -> str:
    text = _text(value, place)
    if not is_profile_name(text):
        _fail(place, f"{_show(text)} is not a name; write letters, digits, '-', '_' and '.', at most 63")
    return text


def _pattern(value: object, place: str) -> str:
    text = _text(value, place)
    if not is_pattern(text):
        _fail(place, f"{_show(text)} is not an absolute path pattern without '..'; write for example /models/**")
    return text


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        _fail(place, f"{_kind(value)} where a list belongs")
    if len(value) > MAX_LIST:
        _fail(place, f"{len(value)} entries; at most {MAX_LIST} are read")
    return value


def _listed(parse: Parse[T]) -> Parse[tuple[T, ...]]:
    def read(value: object, place: str) -> tuple[T, ...]:
        return tuple(parse(item, f"{place}[{index}]") for index, item in enumerate(_list(value, place)))

    return read


def _nonempty(parse: Parse[tuple[T, ...]]) -> Parse[tuple[T, ...]]:
    def read(value: object, place: str) -> tuple[T, ...]:
        items = parse(value, place)
        if not items:
            _fail(place, "an empty list; remove the key or name one")
        return items

    return read


def _once(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _enum(kind: type[E]) -> Parse[E]:
    def read(value: object, place: str) -> E:
        for member in kind:
            if value == member.value:
                return member
        words = tuple(str(member.value) for member in kind)
        if not isinstance(value, str):
            _fail(place, f"{_kind(value)} where one of {', '.join(words)} belongs")
        _fail(place, f"{_show(value)} is not one of {', '.join(words)}; {nearest(value, words)}")

    return read


def _size(value: object, place: str) -> int:
    """Text with a unit, or a whole number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        _fail(place, f"{_kind(value)} where a size such as 2Gi belongs")
    try:
        return parse_size(value)
    except ValueError as error:
        _fail(place, str(error))


def _positive_size(value: object, place: str) -> int:
    size = _size(value, place)
    if size == 0:
        _fail(place, "zero bytes would warm nothing; remove the key or write for example 2Gi")
    return size


def _duration(value: object, place: str) -> float:
    if not isinstance(value, str):
        _fail(place, f"{_kind(value)} where a duration such as 90s belongs")
    try:
        return parse_duration(value)
    except ValueError as error:
        _fail(place, str(error))


def _positive_duration(value: object, place: str) -> float:
    seconds = _duration(value, place)
    if seconds <= 0:
        _fail(place, "no time at all; write for example 90s")
    return seconds


def _count(value: object, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        _fail(place, f"{_kind(value)} where a whole number from 1 to {MAX_COUNT} belongs")
    return value
