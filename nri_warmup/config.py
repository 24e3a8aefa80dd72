"""A loaded mapping -> Config. Pure: reading the YAML text is the edge's part (``daemon/configfile.py``).

Owns what the operator may write and every complaint about it. A complaint names the place and, for a key or a name that
is not known, the nearest one that is. ``config.schema.json`` beside this file says the same to editors and CI; what a
schema cannot say (names that refer to each other, a size beyond 8Ei) is checked here alone, see docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_warmup.errors import ConfigError
from nri_warmup.fields import (
    NO_TEXT,
    Section,
    as_any_text,
    as_count,
    as_duration,
    as_enum,
    as_ids,
    as_list,
    as_list_of,
    as_nonempty,
    as_positive_duration,
    as_positive_size,
    as_size,
    as_text,
    describe,
    fail,
    nearest,
    show,
)
from nri_warmup.model.profile import (
    Config,
    ExecProgram,
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

ANNOTATION_KEYS = ("profile", "files", "gate", "deadline", "residency", "max-bytes")
MATCH_KEYS = ("namespace", "container", "image", "runtime-handler")
START_HOLD_S = 0.3
"""How long ``gate: start`` holds where the profile does not say: it holds the runtime's lock meanwhile."""

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_KEY = re.compile(rf"label:[^{NO_TEXT}\x20]{{1,317}}")
_PATTERN = re.compile(rf"(?!.*/\.\.(/|$))/[^{NO_TEXT}]{{0,4095}}")

_HOST_PATH = re.compile(rf"(?!.*/\.{{0,2}}(/|$))/[^{NO_TEXT}]{{1,4095}}")
"""Clean: no empty, ``.`` or ``..`` component, and no slash at its end."""

_DEFAULT_PROFILES = (Profile(name="model", files=("/mnt/models/**", "/models/**", "/model/**")),)
_VALUED = (Operator.IN, Operator.NOT_IN, Operator.MATCHES)


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
    "exec",
)
_EXEC = ("path", "directory", "args", "timeout", "cpus", "nodes")
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


def is_pattern(text: str) -> bool:
    """An absolute path pattern: no ``..`` component, nothing of ``NO_TEXT``, at most 4096 characters."""
    return _PATTERN.fullmatch(text) is not None


def is_profile_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


# --- sections ---------------------------------------------------------------------------------------------------------


def _config(value: object, source: str) -> Config:
    top = Section({} if value is None else value, "", _TOP, null_is_absent=True)
    defaults = Config()
    profiles = top.get("profiles", _profiles, _DEFAULT_PROFILES)
    names = tuple(profile.name for profile in profiles)
    selectors = top.get("selectors", as_list_of(_selector), ())
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
        skip_namespaces=frozenset(top.get("skip_namespaces", as_list_of(as_text), tuple(defaults.skip_namespaces))),
        own_namespace=top.get("own_namespace", as_any_text, ""),
        sandboxed_handlers=top.get("sandboxed_handlers", as_list_of(as_text), defaults.sandboxed_handlers),
        source=source,
    )


def _known_profile(name: str, names: tuple[str, ...], place: str) -> None:
    if name not in names:
        fail(place, f"there is no profile {name!r}; {nearest(name, names)}")


def _profiles(value: object, place: str) -> tuple[Profile, ...]:
    if isinstance(value, Mapping):
        found = []
        for name, body in value.items():
            text = _name(name, place)
            section = Section({} if body is None else body, f"{place}.{text}", _PROFILE[1:])
            found.append(_profile(section, text))
        return tuple(found)
    profiles: list[Profile] = []
    for index, item in enumerate(as_list(value, place)):
        at = f"{place}[{index}]"
        section = Section(item, at, _PROFILE)
        profile = _profile(section, section.require("name", _name))
        if profile.name in (other.name for other in profiles):
            fail(f"{at}.name", f"a profile named {profile.name!r} was declared before")
        profiles.append(profile)
    return tuple(profiles)


def _profile(section: Section, name: str) -> Profile:
    base = Profile(name=name)
    gate = section.get("gate", as_enum(Gate), base.gate)
    return Profile(
        name=name,
        files=_once(section.get("files", as_list_of(_pattern), base.files)),
        gate=gate,
        deadline_s=section.get("deadline", as_positive_duration, base.deadline_s),
        hold_s=section.get("hold", as_duration, START_HOLD_S if gate is Gate.START else base.hold_s),
        residency=section.get("residency", as_enum(Residency), base.residency),
        on_error=section.get("on_error", as_enum(OnError), base.on_error),
        mode=section.get("mode", as_enum(Mode), base.mode),
        max_bytes=section.get("max_bytes", as_positive_size, base.max_bytes),
        reserve_bytes=section.get("reserve", as_size, base.reserve_bytes),
        exec=section.get("exec", _exec, None),
    )


def _exec(value: object, place: str) -> ExecProgram:
    section = Section(value, place, _EXEC)
    path = section.require("path", _host_path)
    directory = section.get("directory", _host_path, "")
    if directory and not path.startswith(f"{directory}/"):
        fail(f"{place}.path", f"{show(path)} is not below directory {show(directory)}")
    return ExecProgram(
        path=path,
        directory=directory,
        args=section.get("args", as_list_of(as_any_text), ()),
        timeout_s=section.get("timeout", as_positive_duration, ExecProgram(path=path).timeout_s),
        cpus=section.get("cpus", as_ids, frozenset()),
        nodes=section.get("nodes", as_ids, frozenset()),
    )


def _host_path(value: object, place: str) -> str:
    text = as_text(value, place)
    if _HOST_PATH.fullmatch(text) is None:
        fail(place, f"{show(text)} is not an absolute path of a file or directory on the host")
    return text


def _selector(value: object, place: str) -> Selector:
    section = Section(value, place, _SELECTOR)
    labels = section.get("matchLabels", _match_labels, ())
    return Selector(
        profile=section.require("profile", _name),
        match=labels + section.get("matchExpressions", as_list_of(_expression), ()),
        containers=section.get("containers", as_nonempty(as_list_of(as_text)), ()),
    )


def _match_labels(value: object, place: str) -> tuple[MatchExpression, ...]:
    if not isinstance(value, Mapping):
        fail(place, f"{describe(value)} where a map of label: value belongs")
    found = []
    for key, wanted in value.items():
        label = _match_key(f"label:{as_text(key, place)}", place)
        text = as_any_text(wanted, f"{place}.{key}")
        found.append(MatchExpression(key=label, operator=Operator.IN, values=(text,)))
    return tuple(found)


def _expression(value: object, place: str) -> MatchExpression:
    section = Section(value, place, _EXPRESSION)
    operator = section.require("operator", as_enum(Operator))
    values = section.get("values", as_list_of(as_any_text), ())
    if operator in _VALUED and not values:
        fail(place, f"operator {operator.value} needs values")
    if operator not in _VALUED and section.has("values"):
        fail(f"{place}.values", f"operator {operator.value} takes no values; remove the key")
    return MatchExpression(key=section.require("key", _match_key), operator=operator, values=values)


def _match_key(value: object, place: str) -> str:
    text = as_text(value, place)
    if text in MATCH_KEYS or _LABEL_KEY.fullmatch(text):
        return text
    known = (*MATCH_KEYS, "label:<key>")
    if text.startswith("label:"):
        fail(place, f"{text!r} is not label: and a label's key")
    fail(place, f"{text!r} cannot be matched; {nearest(text, known)} (a pod label is written label:{text[:60]})")


def _limits(value: object, place: str) -> Limits:
    section = Section(value, place, _LIMITS)
    base = Limits()
    return Limits(
        annotation_profiles=section.get("annotation_profiles", as_list_of(_name), base.annotation_profiles),
        annotation_keys=frozenset(
            section.get("annotation_keys", as_list_of(_annotation_key), tuple(base.annotation_keys))
        ),
        annotation_gates=frozenset(
            section.get("annotation_gates", as_list_of(_annotation_gate), tuple(base.annotation_gates))
        ),
        annotation_residencies=frozenset(
            section.get("annotation_residencies", as_list_of(as_enum(Residency)), tuple(base.annotation_residencies))
        ),
        max_bytes=section.get("max_bytes", as_positive_size, base.max_bytes),
        max_deadline_s=section.get("max_deadline", as_positive_duration, base.max_deadline_s),
        max_files=section.get("max_files", as_count, base.max_files),
        max_patterns=section.get("max_patterns", as_count, base.max_patterns),
        namespace_bytes=section.get("namespace_bytes", as_positive_size, base.namespace_bytes),
        namespace_jobs=section.get("namespace_jobs", as_count, base.namespace_jobs),
        jobs=section.get("jobs", as_count, base.jobs),
    )


def _annotation_key(value: object, place: str) -> str:
    text = as_text(value, place)
    if text not in ANNOTATION_KEYS:
        fail(place, f"{text!r} is not an annotation; {nearest(text, ANNOTATION_KEYS)}")
    return text


def _annotation_gate(value: object, place: str) -> Gate:
    gate = as_enum(Gate)(value, place)
    if gate is Gate.START:
        fail(place, "start holds the runtime's lock and is never an annotation's choice; write none or hook")
    return gate


def _node(value: object, place: str) -> NodeLimits:
    section = Section(value, place, _NODE)
    return NodeLimits(reserve_bytes=section.get("reserve", as_size, NodeLimits().reserve_bytes))


def _name(value: object, place: str) -> str:
    text = as_text(value, place)
    if not is_profile_name(text):
        fail(place, f"{show(text)} is not a name; write letters, digits, '-', '_' and '.', at most 63")
    return text


def _pattern(value: object, place: str) -> str:
    text = as_text(value, place)
    if not is_pattern(text):
        fail(place, f"{show(text)} is not an absolute path pattern without '..'; write for example /models/**")
    return text


def _once(items: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
