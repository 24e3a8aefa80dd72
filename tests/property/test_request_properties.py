"""No annotation makes the parser raise or slow down; what YAML says of a simple map, we say as well."""

from __future__ import annotations

import json
import os

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_warmup.model.lifecycle import Container, Pod, pairs
from nri_warmup.request import MAX_COMPLAINTS, parse_named_values, parse_request

UNWANTED = frozenset(map(chr, [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F)]))

keys = st.sampled_from(["profile", "files", "gate", "deadline", "residency", "max-bytes", "planned", "", "x"])
suffixes = st.sampled_from(["", "/pod", "/container.a", "/container.", "/", "/x", "/pod/x"])
values = st.one_of(
    st.text(),
    st.sampled_from(["model", "/a\n/b", "hook", "1s", "1Gi", "a: x\nb: y", "a: |\n  /x", "a:\n- /x", '{"a": "b"}']),
    st.text(alphabet="ab:/|-'\"# \n{}[]&*", max_size=40),
    st.lists(st.text(st.characters(), max_size=4).map("/{}".format), max_size=3).map("\n".join),
    st.text(st.characters(), max_size=4).map(lambda name: json.dumps({"a": f"/{name}"})),
)
annotations = st.dictionaries(
    st.builds(lambda k, s: f"{k}.nri-warmup.dev{s}" if k else f"nri-warmup.dev{s}", keys, suffixes) | st.text(),
    values,
    max_size=8,
)


@given(annotations, annotations, st.sampled_from(["a", "", "é\n"]))
@settings(max_examples=300)
def test_nothing_raises_and_nothing_unprintable_comes_out(pod: dict[str, str], own: dict[str, str], name: str) -> None:
    one, other = Pod(id="p", annotations=pairs(pod)), Container(id="c", name=name, annotations=pairs(own))
    request = parse_request(one, other)
    assert request == parse_request(one, other)
    assert len(request.complaints) <= MAX_COMPLAINTS + 1
    assert all(str(complaint).isprintable() and len(str(complaint)) < 1000 for complaint in request.complaints)
    assert all(pattern.startswith("/") for pattern in request.files or ())
    assert all(os.fsencode(pattern) and not UNWANTED.intersection(pattern) for pattern in request.files or ())


plain = st.from_regex(r"[a-zA-Z/][a-zA-Z0-9/*._-]{0,12}", fullmatch=True).filter(
    lambda t: t.lower() not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null", "inf", "nan")
)
names = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True).filter(
    lambda t: t not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
)


@given(st.dictionaries(names, plain | st.lists(plain, min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_maps_that_a_yaml_library_writes_are_read_the_same(
    value: dict[str, str | list[str]], data: st.DataObject
) -> None:
    style = data.draw(st.sampled_from([None, "'", '"']))
    text = yaml.safe_dump(value, default_style=style, default_flow_style=False, width=10_000)
    expected = {k: v if isinstance(v, str) else "\n".join(v) for k, v in value.items()}
    assert parse_named_values(text) == expected
