"""The schema and the loader agree on configurations nobody wrote by hand: good ones, and those with one change."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nri_warmup.config import ANNOTATION_KEYS, load_config
from nri_warmup.errors import ConfigError
from tests.unit.test_config_schema import BEYOND_A_SCHEMA, VALIDATOR

NAMES = ("model", "llm", "a.b-c_d")
name = st.sampled_from(NAMES)
no_text = st.characters(categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from([*"\u061c\u200e\u202e\u2066"])
written = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf"))
text = st.text(written, max_size=6)
some_text = st.text(written, min_size=1, max_size=6)
size = st.integers(1, 1 << 62) | st.from_regex(r"[1-9][0-9]{0,3}(\.[0-9]{1,3})? ?[kKMGTP]i?B?", fullmatch=True)
duration = st.from_regex(r"([1-9][0-9]{0,3}(ms|s|m|h)){1,3}", fullmatch=True)
pattern = st.from_regex(r"(/[a-z*.]{1,5}){1,3}", fullmatch=True).filter(lambda t: "/../" not in f"{t}/")
count = st.integers(1, 1_000_000)


def record(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


profile_body = {
    "files": st.lists(pattern, max_size=3),
    "gate": st.sampled_from(["none", "hook", "start"]),
    "deadline": duration,
    "hold": duration | st.just("0"),
    "residency": st.sampled_from(["inactive", "active", "held"]),
    "on_error": st.sampled_from(["open", "closed"]),
    "mode": st.sampled_from(["enforce", "observe"]),
    "max_bytes": size,
    "reserve": size | st.just(0),
}
expression = st.one_of(
    record(
        {
            "key": st.sampled_from(["namespace", "container", "image", "runtime-handler", "label:app", "label:x/y"]),
            "operator": st.sampled_from(["In", "NotIn", "Matches"]),
            "values": st.lists(text, min_size=1, max_size=3),
        },
        {},
    ),
    record({"key": st.just("label:app"), "operator": st.sampled_from(["Exists", "DoesNotExist"])}, {}),
)
selector = record(
    {"profile": st.just("model")},
    {
        "matchLabels": st.dictionaries(st.sampled_from(["app", "a.b/c"]), text, max_size=2),
        "matchExpressions": st.lists(expression, max_size=2),
        "containers": st.lists(some_text, min_size=1, max_size=2),
    },
)
limits = record(
    {},
    {
        "annotation_profiles": st.lists(st.just("model"), max_size=2),
        "annotation_keys": st.lists(st.sampled_from(ANNOTATION_KEYS), max_size=3),
        "annotation_gates": st.lists(st.sampled_from(["none", "hook"]), max_size=2),
        "annotation_residencies": st.lists(st.sampled_from(["inactive", "active", "held"]), max_size=2),
        "max_bytes": size,
        "max_deadline": duration,
        "max_files": count,
        "max_patterns": count,
        "namespace_bytes": size,
        "namespace_jobs": count,
        "jobs": count,
    },
)
profiles = st.one_of(
    st.dictionaries(st.sampled_from(NAMES[1:]), record({}, profile_body) | st.none(), max_size=2).map(
        lambda d: {**d, "model": None}
    ),
    st.lists(record({"name": st.sampled_from(NAMES[1:])}, profile_body), max_size=1).map(
        lambda found: [*found, {"name": "model"}]
    ),
)
configs = record(
    {},
    {
        "profiles": profiles,
        "selectors": st.lists(selector, max_size=3) | st.none(),
        "limits": limits | st.none(),
        "node": record({}, {"reserve": size}) | st.none(),
        "skip_namespaces": st.lists(some_text, max_size=2) | st.none(),
        "own_namespace": text | st.none(),
        "sandboxed_handlers": st.lists(some_text, max_size=2) | st.none(),
    },
)
replacement = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.just(1 << 64),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    text,
    st.sampled_from(
        ["", "0", "0s", "0Gi", "30", "start", "In", "/a", "/a/..", "a\n", "/a\n", "2Gi\n", "9" * 30, "none"]
    ),
    st.just([]),
    st.just({}),
    st.lists(text, max_size=1),
    st.builds("{}{}{}".format, st.sampled_from(["", "a", "/a", "label:a"]), no_text, st.sampled_from(["", "a"])),
    st.dictionaries(st.sampled_from(["name", "key", "files", "zzz"]), text, max_size=1),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        found += places(child, (*at, key))
    return found


def changed(value: Any, at: tuple[Any, ...], new: Any, how: str) -> Any:
    """``value`` with the thing at ``at`` replaced or removed, or with another key beside it."""
    value = copy.deepcopy(value)
    if not at:
        return new
    holder = value
    for key in at[:-1]:
        holder = holder[key]
    if how == "remove":
        del holder[at[-1]]
    elif how == "add" and isinstance(holder, dict):
        holder["unheard-of"] = new
    else:
        holder[at[-1]] = new
    return value


def complaint_of(value: object) -> str | None:
    try:
        load_config(value, source="c")
    except ConfigError as error:
        return str(error)
    return None


@given(configs)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_what_the_schema_lets_through_loads(value: Any) -> None:
    assert VALIDATOR.is_valid(value)
    assert complaint_of(value) is None


@given(configs, st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_one_change_is_judged_alike(value: Any, data: st.DataObject) -> None:
    at = data.draw(st.sampled_from(places(value)))
    value = changed(value, at, data.draw(replacement), data.draw(st.sampled_from(["replace", "remove", "add"])))
    valid, complaint = VALIDATOR.is_valid(value), complaint_of(value)
    event(f"valid: {valid}, loads: {complaint is None}")
    if valid:
        assert complaint is None or any(text in complaint for text in BEYOND_A_SCHEMA), complaint
    else:
        assert complaint is not None
