"""Reads declared fields out of a loaded mapping, with the place in every complaint. Pure.

Knows shapes (text, lists, sizes, durations), not what they are for: ``config`` says which keys there are. A parser
takes (value, place) and raises ConfigError with ``place`` set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import NoReturn, TypeVar

from nri_warmup.errors import ConfigError
from nri_warmup.units import parse_duration, parse_id_list, parse_size

T = TypeVar("T")
U = TypeVar("U")
E = TypeVar("E", bound=Enum)
Parse = Callable[[object, str], T]

MAX_LIST = 1000
MAX_TEXT = 4096
MAX_COUNT = 1_000_000

NO_TEXT = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""A character class, without its brackets: what no text may hold. Control characters of ASCII and of Latin-1, those
that end a line or turn the direction of what is shown after them, and surrogates, which no file name can hold."""

_CONTROL = re.compile(f"[{NO_TEXT}]")


def nearest(word: str, known: tuple[str, ...]) -> str:
    """The sentence that ends a complaint about an unknown word: the nearest known one, or all of them."""
    if (match := nearest_word(word, known)) is not None:
        return f"did you mean {match}?"
    return f"known: {', '.join(known)}" if known else "none is known"


def nearest_word(word: str, known: tuple[str, ...]) -> str | None:
    """The known word that differs least, case left aside; None where none is near."""
    match = get_close_matches(word[:100].lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    return next(k for k in known if k.lower() == match[0]) if match else None


class Section:
    """A mapping whose keys are all known. An unknown one is refused before any value is looked at."""

    def __init__(self, value: object, place: str, known: tuple[str, ...], *, null_is_absent: bool = False) -> None:
        if not isinstance(value, Mapping):
            fail(place, f"{describe(value)} where a map with {', '.join(known[:3])}… belongs")
        for key in value:
            if not isinstance(key, str) or key not in known:
                fail(place, f"unknown key {show(key)}; {nearest(str(key), known)}")
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
            fail(self._place, f"{key} is missing")
        return parse(self._value[key], f"{self._place}.{key}")


def fail(place: str, message: str) -> NoReturn:
    raise ConfigError(message, place=place)


def show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()} (quote it if text is meant)"
    if isinstance(value, (int, float)):
        return f"the number {show(value)}"
    if isinstance(value, str):
        return f"the text {show(value)}"
    if isinstance(value, Mapping):
        return "a map"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__} (quote it if text is meant)"


def as_any_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        fail(place, f"{describe(value)} where text belongs")
    if len(value) > MAX_TEXT or _CONTROL.search(value):
        fail(place, f"{show(value)} is longer than {MAX_TEXT} characters or holds a control character")
    return value


def as_text(value: object, place: str) -> str:
    text = as_any_text(value, place)
    if not text:
        fail(place, "empty text; remove the key or give a value")
    return text


def as_list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        fail(place, f"{describe(value)} where a list belongs")
    if len(value) > MAX_LIST:
        fail(place, f"{len(value)} entries; at most {MAX_LIST} are read")
    return value


def as_list_of(parse: Parse[T]) -> Parse[tuple[T, ...]]:
    def read(value: object, place: str) -> tuple[T, ...]:
        return tuple(parse(item, f"{place}[{index}]") for index, item in enumerate(as_list(value, place)))

    return read


def as_nonempty(parse: Parse[tuple[T, ...]]) -> Parse[tuple[T, ...]]:
    def read(value: object, place: str) -> tuple[T, ...]:
        items = parse(value, place)
        if not items:
            fail(place, "an empty list; remove the key or name one")
        return items

    return read


def as_enum(kind: type[E]) -> Parse[E]:
    def read(value: object, place: str) -> E:
        for member in kind:
            if value == member.value:
                return member
        words = tuple(str(member.value) for member in kind)
        if not isinstance(value, str):
            fail(place, f"{describe(value)} where one of {', '.join(words)} belongs")
        fail(place, f"{show(value)} is not one of {', '.join(words)}; {nearest(value, words)}")

    return read


def whole(value: object) -> object:
    """An int where the number is whole: JSON makes no difference between 2 and 2.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_size(value: object, place: str) -> int:
    """Text with a unit, or a whole number of bytes."""
    value = whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        fail(place, f"{describe(value)} where a size such as 2Gi belongs")
    try:
        return parse_size(value)
    except ValueError as error:
        fail(place, str(error))


def as_positive_size(value: object, place: str) -> int:
    size = as_size(value, place)
    if size == 0:
        fail(place, "zero bytes would warm nothing; remove the key or write for example 2Gi")
    return size


def as_duration(value: object, place: str) -> float:
    if not isinstance(value, str):
        fail(place, f"{describe(value)} where a duration such as 90s belongs")
    try:
        return parse_duration(value)
    except ValueError as error:
        fail(place, str(error))


def as_positive_duration(value: object, place: str) -> float:
    seconds = as_duration(value, place)
    if seconds <= 0:
        fail(place, "no time at all; write for example 90s")
    return seconds


def as_ids(value: object, place: str) -> frozenset[int]:
    """CPUs or NUMA nodes in the kernel's list format; a single one may be a number."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        fail(place, f"{describe(value)} where a list such as 0-3,8 belongs")
    try:
        return parse_id_list(text)
    except ValueError as error:
        fail(place, str(error))


def as_count(value: object, place: str) -> int:
    value = whole(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT:
        fail(place, f"{describe(value)} where a whole number from 1 to {MAX_COUNT} belongs")
    return value
