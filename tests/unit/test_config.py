"""The loader: what it makes of a good file, and that each complaint names the place and the nearest known word."""

from __future__ import annotations

import pytest

from nri_warmup.config import START_HOLD_S, default_config, load_config
from nri_warmup.errors import ConfigError
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

WHOLE = {
    "profiles": [
        {
            "name": "llm",
            "files": ["/models/**", "/opt/lib/*.so", "/models/**"],
            "gate": "hook",
            "deadline": "10m",
            "hold": "20s",
            "residency": "active",
            "on_error": "closed",
            "mode": "observe",
            "max_bytes": "64Gi",
            "reserve": "128Mi",
            "exec": {
                "path": "/opt/warm/bin/wake",
                "directory": "/opt/warm",
                "args": ["--all", ""],
                "timeout": "1500ms",
                "cpus": "0-2, 8",
                "nodes": 1,
            },
        },
        {"name": "quick", "gate": "start"},
    ],
    "selectors": [
        {
            "profile": "llm",
            "matchLabels": {"app": "llm", "tier": ""},
            "matchExpressions": [
                {"key": "namespace", "operator": "NotIn", "values": ["test"]},
                {"key": "label:team", "operator": "Exists"},
                {"key": "image", "operator": "Matches", "values": ["*/vllm*"]},
            ],
            "containers": ["server*"],
        }
    ],
    "limits": {
        "annotation_profiles": ["llm"],
        "annotation_keys": ["profile", "files"],
        "annotation_gates": ["none"],
        "annotation_residencies": ["inactive", "active"],
        "max_bytes": "1Ti",
        "max_deadline": "30m",
        "max_files": 100,
        "max_patterns": 8,
        "namespace_bytes": 1 << 30,
        "namespace_jobs": 2,
        "jobs": 3,
    },
    "node": {"reserve": "1Gi"},
    "skip_namespaces": ["kube-system", "monitoring"],
    "own_namespace": "warmup",
    "sandboxed_handlers": ["kata*"],
}


def test_whole_file() -> None:
    config = load_config(WHOLE, source="c.yaml")
    assert config == Config(
        profiles=(
            Profile(
                name="llm",
                files=("/models/**", "/opt/lib/*.so"),
                gate=Gate.HOOK,
                deadline_s=600.0,
                hold_s=20.0,
                residency=Residency.ACTIVE,
                on_error=OnError.CLOSED,
                mode=Mode.OBSERVE,
                max_bytes=64 << 30,
                reserve_bytes=128 << 20,
                exec=ExecProgram(
                    path="/opt/warm/bin/wake",
                    directory="/opt/warm",
                    args=("--all", ""),
                    timeout_s=1.5,
                    cpus=frozenset({0, 1, 2, 8}),
                    nodes=frozenset({1}),
                ),
            ),
            Profile(name="quick", gate=Gate.START, hold_s=START_HOLD_S),
        ),
        selectors=(
            Selector(
                profile="llm",
                match=(
                    MatchExpression(key="label:app", operator=Operator.IN, values=("llm",)),
                    MatchExpression(key="label:tier", operator=Operator.IN, values=("",)),
                    MatchExpression(key="namespace", operator=Operator.NOT_IN, values=("test",)),
                    MatchExpression(key="label:team", operator=Operator.EXISTS),
                    MatchExpression(key="image", operator=Operator.MATCHES, values=("*/vllm*",)),
                ),
                containers=("server*",),
            ),
        ),
        limits=Limits(
            annotation_profiles=("llm",),
            annotation_keys=frozenset({"profile", "files"}),
            annotation_gates=frozenset({Gate.NONE}),
            annotation_residencies=frozenset({Residency.INACTIVE, Residency.ACTIVE}),
            max_bytes=1 << 40,
            max_deadline_s=1800.0,
            max_files=100,
            max_patterns=8,
            namespace_bytes=1 << 30,
            namespace_jobs=2,
            jobs=3,
        ),
        node=NodeLimits(reserve_bytes=1 << 30),
        skip_namespaces=frozenset({"kube-system", "monitoring"}),
        own_namespace="warmup",
        sandboxed_handlers=("kata*",),
        source="c.yaml",
    )


@pytest.mark.parametrize("value", [None, {}, {"profiles": None, "selectors": None, "limits": None, "node": None}])
def test_nothing_gives_the_defaults(value: object) -> None:
    default = default_config()
    assert default.profile("model") is not None
    assert load_config(value, source=default.source) == default


def test_profiles_by_name_are_the_same_as_a_list() -> None:
    by_name = {"profiles": {"a": {"gate": "hook"}, "b": None}}
    listed = {"profiles": [{"name": "a", "gate": "hook"}, {"name": "b"}]}
    assert load_config(by_name, source="x") == load_config(listed, source="x")


def test_own_profiles_replace_the_built_in_one() -> None:
    assert load_config({"profiles": [{"name": "a"}]}, source="x").profile("model") is None


def _exec(**fields: object) -> dict[str, object]:
    return {"profiles": [{"name": "a", "exec": fields}]}


BAD: list[tuple[object, str]] = [
    (_exec(), "c: profiles[0].exec: path is missing"),
    (_exec(path="/a", arg=[]), "c: profiles[0].exec: unknown key 'arg'; did you mean args?"),
    (_exec(path="bin/wake"), "c: profiles[0].exec.path: 'bin/wake' is not an absolute path"),
    (_exec(path="/"), "c: profiles[0].exec.path: '/' is not an absolute path"),
    (_exec(path="/a/"), "c: profiles[0].exec.path: '/a/' is not an absolute path"),
    (_exec(path="/a/../b"), "c: profiles[0].exec.path: '/a/../b' is not an absolute path"),
    (_exec(path="/a//b"), "c: profiles[0].exec.path: '/a//b' is not an absolute path"),
    (_exec(path="/a/b", directory="/c"), "profiles[0].exec.path: '/a/b' is not below directory '/c'"),
    (_exec(path="/ab/c", directory="/a"), "profiles[0].exec.path: '/ab/c' is not below directory '/a'"),
    (_exec(path="/a", args="x"), "c: profiles[0].exec.args: the text 'x' where a list belongs"),
    (_exec(path="/a", args=[1]), "c: profiles[0].exec.args[0]: the number 1"),
    (_exec(path="/a", timeout="0s"), "c: profiles[0].exec.timeout: no time at all"),
    (_exec(path="/a", cpus="x"), "c: profiles[0].exec.cpus: 'x' is not a cpu or node range"),
    (_exec(path="/a", cpus="3-1"), "c: profiles[0].exec.cpus: '3-1' is not a range of cpus"),
    (_exec(path="/a", cpus=-1), "c: profiles[0].exec.cpus: '-1' is not a cpu or node range"),
    (_exec(path="/a", nodes=True), "c: profiles[0].exec.nodes: the boolean true"),
    (_exec(path="/a", nodes=[0]), "c: profiles[0].exec.nodes: a list where"),
    ([], "c: a list where a map with profiles, selectors, limits… belongs"),
    ("x", "c: the text 'x' where a map with"),
    ({"profile": []}, "c: unknown key 'profile'; did you mean profiles?"),
    ({7: []}, "c: unknown key 7; known: profiles"),
    ({"profiles": "x"}, "c: profiles: the text 'x' where a list belongs"),
    ({"profiles": [{}]}, "c: profiles[0]: name is missing"),
    ({"profiles": [None]}, "c: profiles[0]: nothing where a map"),
    ({"profiles": [{"name": "a", "file": []}]}, "c: profiles[0]: unknown key 'file'; did you mean files?"),
    ({"profiles": [{"name": "a", "on-error": "open"}]}, "unknown key 'on-error'; did you mean on_error?"),
    ({"profiles": {"a": {"name": "a"}}}, "c: profiles.a: unknown key 'name'"),
    ({"profiles": [{"name": "a"}, {"name": "a"}]}, "c: profiles[1].name: a profile named 'a' was declared before"),
    ({"profiles": [{"name": "a b"}]}, "c: profiles[0].name: 'a b' is not a name"),
    ({"profiles": [{"name": ""}]}, "c: profiles[0].name: empty text"),
    ({"profiles": [{"name": True}]}, "the boolean true (quote it if text is meant) where text belongs"),
    (
        {"profiles": [{"name": "a", "gate": "hok"}]},
        "profiles[0].gate: 'hok' is not one of none, hook, start; did you mean hook?",
    ),
    ({"profiles": [{"name": "a", "gate": None}]}, "profiles[0].gate: nothing where one of none, hook, start belongs"),
    ({"profiles": [{"name": "a", "on_error": True}]}, "the boolean true (quote it if text is meant) where one of"),
    ({"profiles": [{"name": "a", "deadline": 30}]}, "profiles[0].deadline: the number 30 where a duration such as 90s"),
    ({"profiles": [{"name": "a", "deadline": "30"}]}, "profiles[0].deadline: '30' is not a duration; write"),
    ({"profiles": [{"name": "a", "deadline": "0"}]}, "profiles[0].deadline: no time at all"),
    ({"profiles": [{"name": "a", "max_bytes": "2 gigs"}]}, "'2 gigs' is not a size; write a number and Ki"),
    ({"profiles": [{"name": "a", "max_bytes": 0}]}, "profiles[0].max_bytes: zero bytes would warm nothing"),
    ({"profiles": [{"name": "a", "max_bytes": True}]}, "the boolean true"),
    ({"profiles": [{"name": "a", "reserve": -1}]}, "profiles[0].reserve: '-1' is not a size"),
    ({"profiles": [{"name": "a", "files": "/models"}]}, "profiles[0].files: the text '/models' where a list belongs"),
    ({"profiles": [{"name": "a", "files": ["models/x"]}]}, "profiles[0].files[0]: 'models/x' is not an absolute path"),
    ({"profiles": [{"name": "a", "files": ["/a/../b"]}]}, "profiles[0].files[0]: '/a/../b' is not an absolute path"),
    ({"profiles": [{"name": "a", "files": ["/a\n/b"]}]}, "files[0]: '/a\\n/b' is longer than 4096"),
    ({"selectors": [{}]}, "c: selectors[0]: profile is missing"),
    ({"selectors": [{"profile": "modle"}]}, "selectors[0].profile: there is no profile 'modle'; did you mean model?"),
    ({"selectors": [{"profile": "model", "match": {}}]}, "unknown key 'match'; did you mean matchLabels?"),
    ({"selectors": [{"profile": "model", "containers": []}]}, "selectors[0].containers: an empty list"),
    ({"selectors": [{"profile": "model", "matchLabels": {"a": True}}]}, "matchLabels.a: the boolean true (quote it"),
    ({"selectors": [{"profile": "model", "matchLabels": {"": "x"}}]}, "selectors[0].matchLabels: empty text"),
    ({"selectors": [{"profile": "model", "matchLabels": []}]}, "a list where a map of label: value belongs"),
    (
        {"selectors": [{"profile": "model", "matchExpressions": [{"key": "app", "operator": "Exists"}]}]},
        "matchExpressions[0].key: 'app' cannot be matched;",
    ),
    (
        {"selectors": [{"profile": "model", "matchExpressions": [{"key": "nmespace", "operator": "Exists"}]}]},
        "did you mean namespace?",
    ),
    (
        {"selectors": [{"profile": "model", "matchExpressions": [{"key": "label:", "operator": "Exists"}]}]},
        "'label:' is not label: and a label's key",
    ),
    (
        {"selectors": [{"profile": "model", "matchExpressions": [{"key": "image", "operator": "in"}]}]},
        "matchExpressions[0].operator: 'in' is not one of In, NotIn, Exists, DoesNotExist, Matches; did you mean In?",
    ),
    (
        {"selectors": [{"profile": "model", "matchExpressions": [{"key": "image", "operator": "In"}]}]},
        "matchExpressions[0]: operator In needs values",
    ),
    (
        {
            "selectors": [
                {"profile": "model", "matchExpressions": [{"key": "image", "operator": "Exists", "values": []}]}
            ]
        },
        "matchExpressions[0].values: operator Exists takes no values",
    ),
    ({"limits": {"annotation_keys": ["file"]}}, "'file' is not an annotation; did you mean files?"),
    ({"limits": {"annotation_gates": ["start"]}}, "limits.annotation_gates[0]: start holds the runtime's lock"),
    (
        {"limits": {"annotation_profiles": ["x"]}},
        "limits.annotation_profiles[0]: there is no profile 'x'; known: model",
    ),
    ({"limits": {"jobs": 0}}, "limits.jobs: the number 0 where a whole number from 1"),
    ({"limits": {"jobs": 1.5}}, "limits.jobs: the number 1.5 where"),
    ({"limits": {"jobs": True}}, "limits.jobs: the boolean true"),
    ({"limits": {"max_files": "10"}}, "limits.max_files: the text '10' where a whole number"),
    ({"skip_namespaces": ["a\u202eb"]}, "skip_namespaces[0]: 'a\\u202eb' is longer than"),
    ({"profiles": [{"name": "a", "files": ["/a\ud800"]}]}, "profiles[0].files[0]: '/a\\ud800'"),
    ({"node": {"reserve_bytes": 1}}, "node: unknown key 'reserve_bytes'; did you mean reserve?"),
    ({"skip_namespaces": [False]}, "skip_namespaces[0]: the boolean false (quote it"),
    ({"own_namespace": 7}, "own_namespace: the number 7 where text belongs"),
]


@pytest.mark.parametrize(("value", "complaint"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_complaint(value: object, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(value, source="c")
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("c: ")
    assert str(caught.value).startswith(f"c: {caught.value.place}")


def test_a_list_is_bounded() -> None:
    with pytest.raises(ConfigError, match="1001 entries; at most 1000"):
        load_config({"skip_namespaces": ["a"] * 1001}, source="c")
