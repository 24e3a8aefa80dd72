"""Reads the operator's YAML from disk: the edge before ``config.load_config``.

The text is judged as a tree of nodes before any value is made of it: its size, its depth, the number of nodes with
every alias followed (a few lines of aliases can otherwise stand for billions of values), keys that are given twice.
Complaints carry the line.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

import yaml

from nri_warmup.config import load_config
from nri_warmup.errors import ConfigError
from nri_warmup.model.profile import Config

MAX_BYTES = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 24
_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "seq", "map", "timestamp", "merge")
)
"""Those that plain values resolve to."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config(path: str) -> Config:
    """The file at ``path`` as a Config. ConfigError for whatever is wrong with it, a missing file included."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"{path}: not a regular file")
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    return parse_config(text, source=path)


def _open_without_waiting(path: str, flags: int) -> int:
    """A FIFO would otherwise hold the daemon until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def parse_config(text: str, *, source: str) -> Config:
    """YAML (or JSON) text as a Config; ``source`` starts every complaint."""
    value, lines = _load(text, source)
    try:
        return load_config(value, source=source)
    except ConfigError as error:
        line = _line_of(error.place, lines)
        if line is None:
            raise
        message = str(error).removeprefix(f"{source}: ")
        raise ConfigError(f"{source}: line {line}: {message}", place=error.place) from None


def parse_document(text: str, *, source: str) -> object:
    """Bounded YAML or JSON text as plain values: for other inputs of an operator's, such as a pod's manifest."""
    return _load(text, source)[0]


def _load(text: str, source: str) -> tuple[object, dict[str, int]]:
    """(values, line of each place). One document only."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{source}: larger than {MAX_BYTES} characters")
    _check_depth(text, source)
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, {}
            lines = _survey(node, source)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{source}: {where}{error.problem or error.context or 'not YAML'}") from None
    except ConfigError:
        raise
    except Exception as error:  # PyYAML's constructors raise KeyError, IndexError, AttributeError for odd scalars
        first = (str(error).splitlines() or ["not YAML"])[0]
        raise ConfigError(f"{source}: {first}") from None


def _check_depth(text: str, source: str) -> None:
    """Before nodes are composed, for that recurses once a level in C."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    line = event.start_mark.line + 1 if event.start_mark is not None else 0
                    raise ConfigError(f"{source}: line {line}: nested more than {MAX_DEPTH} deep")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except (yaml.YAMLError, ValueError):
        return  # composing it says what is wrong, and where


def _survey(root: yaml.Node, source: str) -> dict[str, int]:
    """The line of every place, with every alias followed; refuses what is too much, too deep or given twice."""
    lines: dict[str, int] = {}
    stack: list[tuple[str, yaml.Node, int, int]] = [("", root, 1, root.start_mark.line + 1)]
    count = 0
    while stack:
        place, node, depth, line = stack.pop()
        lines.setdefault(place, line)
        count += 1
        if node.tag not in _TAGS:
            raise ConfigError(f"{source}: line {line}: a value with the tag {node.tag!r}; write it without a tag")
        if count > MAX_NODES:
            raise ConfigError(f"{source}: more than {MAX_NODES} values, aliases counted; too much for a configuration")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{source}: line {line}: nested more than {MAX_DEPTH} deep, or in itself")
        stack.extend((name, child, depth + 1, at) for name, child, at in _children(place, node, source))
    return lines


def _children(place: str, node: yaml.Node, source: str) -> Iterator[tuple[str, yaml.Node, int]]:
    if isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield f"{place}[{index}]", child, child.start_mark.line + 1
    elif isinstance(node, yaml.MappingNode):
        seen: set[tuple[str, str]] = set()
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{source}: line {line}: a key must be text")
            if (key.tag, key.value) in seen:
                raise ConfigError(f"{source}: line {line}: {key.value!r} is given twice")
            seen.add((key.tag, key.value))
            yield f"{place}.{key.value}" if place else key.value, child, line


def _line_of(place: str, lines: dict[str, int]) -> int | None:
    """The line of ``place``, or of the nearest thing around it that has one."""
    while place:
        if place in lines:
            return lines[place]
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return None
