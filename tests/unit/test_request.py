"""Annotations of one container -> request: precedence, the map under /pod, every complaint with its place."""

from __future__ import annotations

import json

import pytest

from nri_warmup.errors import RequestError
from nri_warmup.model.lifecycle import Container, Pod, pairs
from nri_warmup.model.profile import Gate, Residency
from nri_warmup.model.request import Complaint, WarmupRequest
from nri_warmup.request import MAX_COMPLAINTS, MAX_LINES, MAX_VALUE, PLANNED, parse_named_values, parse_request

LONG = "a-container-whose-name-is-too-long-for-an-annotation-key-suffix"


def ask(pod: dict[str, str], own: dict[str, str] | None = None, name: str = "server") -> WarmupRequest:
    return parse_request(
        Pod(id="p", annotations=pairs(pod)), Container(id="c", name=name, annotations=pairs(own or {}))
    )


def test_nothing_is_nothing() -> None:
    assert ask({"kubernetes.io/config.seen": "x"}, {"io.kubernetes.cri.container-name": "server"}) == WarmupRequest()


def test_every_key() -> None:
    request = ask(
        {
            "profile.nri-warmup.dev": " model\n",
            "files.nri-warmup.dev": "/models/**\n\n  /opt/x.so \n/models/**\n",
            "gate.nri-warmup.dev": "hook",
            "deadline.nri-warmup.dev": "1m30s",
            "residency.nri-warmup.dev": "active",
            "max-bytes.nri-warmup.dev": "2Gi",
            PLANNED: "model",
        }
    )
    assert request == WarmupRequest(
        profile="model",
        files=("/models/**", "/opt/x.so"),
        gate=Gate.HOOK,
        deadline_s=90.0,
        residency=Residency.ACTIVE,
        max_bytes=2 << 30,
    )


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_an_empty_profile_opts_out(value: str) -> None:
    request = ask({"profile.nri-warmup.dev": value})
    assert request.opt_out
    assert request.profile is None


FORMS = (
    {"profile.nri-warmup.dev": "bare"},
    {"profile.nri-warmup.dev/pod": "pod"},
    {"profile.nri-warmup.dev/pod": "server: entry"},
    {"profile.nri-warmup.dev/container.server": "container"},
)


def test_precedence() -> None:
    asked = {}
    for form, expected in zip(FORMS, ("bare", "pod", "entry", "container"), strict=True):
        asked |= form
        assert ask(asked).profile == expected


def test_precedence_is_for_each_key_alone() -> None:
    request = ask(
        {
            "profile.nri-warmup.dev": "bare",
            "deadline.nri-warmup.dev": "1s",
            "deadline.nri-warmup.dev/container.server": "2s",
            "gate.nri-warmup.dev/container.other": "hook",
        }
    )
    assert (request.profile, request.deadline_s, request.gate) == ("bare", 2.0, None)


def test_named_only_where_this_container_is() -> None:
    assert [ask(form).named for form in FORMS] == [False, False, True, True]
    assert not ask({"profile.nri-warmup.dev/container.other": "x"}).named
    assert not ask({"profile.nri-warmup.dev/pod": "other: x"}).named


def test_a_container_without_a_name_is_not_addressed() -> None:
    assert ask({"profile.nri-warmup.dev/container.": "x"}, name="") == WarmupRequest()


def test_a_map_that_does_not_name_this_container_asks_nothing_of_it() -> None:
    assert ask({"profile.nri-warmup.dev/pod": "other: x", "profile.nri-warmup.dev": "bare"}).profile == "bare"


def test_the_container_s_own_annotations_count_and_beat_the_pod_s_of_the_same_form() -> None:
    bare = {"profile.nri-warmup.dev": "own"}
    assert ask({}, bare).profile == "own"
    assert ask({"profile.nri-warmup.dev": "pods"}, bare).profile == "own"
    assert ask({"profile.nri-warmup.dev/pod": "pods"}, bare).profile == "pods"


def test_a_name_too_long_for_a_suffix() -> None:
    request = ask({"files.nri-warmup.dev/pod": f"{LONG}: |\n  /models/**\n  /x\nother: /y\n"}, name=LONG)
    assert request.files == ("/models/**", "/x")
    assert request.named


@pytest.mark.parametrize(
    ("key", "value", "place", "message"),
    [
        ("deadline.nri-warmup.dev", "30", "", "'30' is not a duration; write a number and ms, s, m or h"),
        ("deadline.nri-warmup.dev", "0", "", "'0' is no time at all; write for example 90s"),
        ("deadline.nri-warmup.dev/container.server", "soon", "", "'soon' is not a duration"),
        ("max-bytes.nri-warmup.dev/pod", "2 gigs", "", "'2 gigs' is not a size; write a number and Ki"),
        ("max-bytes.nri-warmup.dev", "0", "", "'0' would warm nothing"),
        ("max-bytes.nri-warmup.dev", "9" * 300, "", "is too long for a number with a unit"),
        ("gate.nri-warmup.dev", "hold", "", "'hold' is not one of none, hook, start"),
        ("residency.nri-warmup.dev", "", "", "'' is not one of inactive, active, held"),
        ("profile.nri-warmup.dev", "a b", "", "'a b' is not a profile's name"),
        ("files.nri-warmup.dev", "models/*", "", "'models/*' is not an absolute path pattern"),
        ("files.nri-warmup.dev", "/a/../etc", "", "'/a/../etc' is not an absolute path pattern"),
        ("files.nri-warmup.dev", "/a\0b", "", "'/a\\x00b' is not an absolute path pattern"),
        ("files.nri-warmup.dev", "/" + "x" * 256, "", "has a component of more than 255 characters"),
        ("files.nri-warmup.dev", "\n", "", "no usable pattern; write absolute paths or globs"),
        ("fils.nri-warmup.dev", "/x", "", "unknown annotation; did you mean files.nri-warmup.dev?"),
        ("nri-warmup.dev/profile", "x", "", "unknown annotation; did you mean profile.nri-warmup.dev?"),
        ("zzzzzz.nri-warmup.dev", "x", "", "unknown annotation; known: profile.nri-warmup.dev, files.nri-warmup.dev"),
        ("files.nri-warmup.dev/pods", "/x", "", "/pods addresses nothing; write /pod, /container.<name> or no suffix"),
        ("files.nri-warmup.dev/server", "/x", "", "/server addresses nothing"),
        ("files.nri-warmup.dev/pod", "server: /x\nserver: /y", "", "container server is given twice"),
        ("bad\x1bkey.nri-warmup.dev", "x", "bad?key.nri-warmup.dev (container server)", "unknown annotation"),
    ],
)
def test_complaint(key: str, value: str, place: str, message: str) -> None:
    request = ask({key: value})
    assert request.is_empty
    complaint = request.complaints[0]
    assert complaint.place == (place or f"{key} (container server)")
    assert message in complaint.message
    assert str(complaint).isprintable()


def test_good_lines_beside_bad_ones_are_kept() -> None:
    request = ask({"files.nri-warmup.dev": "/a\nb\n/c"})
    assert request.files == ("/a", "/c")
    assert len(request.complaints) == 1


def test_complaints_are_bounded() -> None:
    request = ask({"files.nri-warmup.dev": "x\n" * 1000})
    assert len(request.complaints) == MAX_COMPLAINTS + 1
    assert request.complaints[-1] == Complaint(place="*.nri-warmup.dev", message="985 more complaints")


@pytest.mark.parametrize("value", ["/x\n" * (MAX_LINES + 1), "/" + "x" * MAX_VALUE])
def test_a_value_too_large_is_not_read(value: str) -> None:
    request = ask({"files.nri-warmup.dev/pod": value, "files.nri-warmup.dev": "/a"})
    assert request.files == ("/a",)
    assert "not read" in request.complaints[0].message


def test_a_domain_that_only_looks_like_ours() -> None:
    assert ask({"profile.not-nri-warmup.dev": "x", "profile.nri-warmup.dev.evil": "x"}) == WarmupRequest()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model", None),
        ("", None),
        ("/models/**\n/a: b", None),
        ("1m30s", None),
        ("a: model", {"a": "model"}),
        ("# for a\na: model # the big one\n\nb:   'x'\n", {"a": "model", "b": "x"}),
        ('"a.b": "x"', {"a.b": "x"}),
        ("a:\nb: ''", {"a": "", "b": ""}),
        ("a: |\n  /x\n\n  /y\nb: /z", {"a": "/x\n/y", "b": "/z"}),
        ("a: |-\n    /x # not a comment here\n", {"a": "/x # not a comment here"}),
        ("a:\n- /x\n- '/y'\n# note\nb:\n  - /z\n  # note\n", {"a": "/x\n/y", "b": "/z"}),
        ('{"a": "x", "b": ["/y", "/z"]}', {"a": "x", "b": "/y\n/z"}),
    ],
)
def test_named_values(text: str, expected: dict[str, str] | None) -> None:
    assert parse_named_values(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a: x\nnonsense",
        "a: x\n  y",
        "a: &anchor x",
        "a: *anchor",
        "a: !!str x",
        "a: [x]",
        "a: {b: c}",
        "a: >\n  x",
        'a: "x\\n"',
        "a: 'it''s'",
        "a:\n  b: c",
        "a: x\na: y",
        "{broken",
        '{"a": 1}',
        '{"a": {"b": "c"}}',
        '{"a": [["x"]]}',
        '{"a":' + "[" * 100_000,
    ],
)
def test_a_map_outside_the_part_that_is_read(text: str) -> None:
    with pytest.raises(RequestError):
        parse_named_values(text)


@pytest.mark.parametrize("code", [0x00, 0x1B, 0x7F, 0x85, 0x9B, 0x61C, 0x200E, 0x2028, 0x202E, 0x2066, 0xD800, 0xDCFF])
@pytest.mark.parametrize("form", ["plain", "json"])
def test_a_path_with_a_character_that_no_terminal_or_file_system_should_see_is_refused(code: int, form: str) -> None:
    """Of what is asked only that path is left out: one of them must not fail the others."""
    bad = f"/models/{chr(code)}x"
    value = json.dumps({"server": [bad, "/models/good"]}) if form == "json" else f"{bad}\n/models/good"
    request = ask({"files.nri-warmup.dev/pod": value})
    assert request.files == ("/models/good",)
    assert len(request.complaints) == 1
    assert str(request.complaints[0]).isprintable()


@pytest.mark.parametrize("path", ["/models/é", "/模型/**", "/models/😀", "/models/a b"])
def test_a_path_in_any_script_is_a_path(path: str) -> None:
    assert ask({"files.nri-warmup.dev": path}).files == (path,)
