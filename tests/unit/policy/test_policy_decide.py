"""The decision as a whole: who is left alone, who picks the profile, what is cut, and that each has its reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nri_warmup.config import default_config, load_config
from nri_warmup.model.lifecycle import Container, Mount, Pod, Runtime, pairs
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import Adjustment, Hook, ReasonKind, WarmFiles, WarmupPlan
from nri_warmup.model.profile import Config, Gate, Mode, OnError, Residency
from nri_warmup.policy.decide import decide

HOOK = NodeState(hook_usable=True, hook_path="/usr/libexec/nri-warmup-hook", control_socket="/run/c.sock")


def make_config(value: dict[str, Any]) -> Config:
    base = {
        "profiles": [
            {"name": "llm", "files": ["/models/**"]},
            {"name": "held", "files": ["/models/**"], "gate": "hook", "on_error": "closed"},
            {"name": "watch", "files": ["/models/**"], "gate": "hook", "mode": "observe"},
            {"name": "start", "files": ["/models/**"], "gate": "start"},
            {"name": "bare"},
        ],
        "selectors": [{"profile": "llm", "matchLabels": {"app": "llm"}}],
    }
    return load_config({**base, **value}, source="test")


def plan(
    annotations: dict[str, str] | None = None,
    *,
    labels: dict[str, str] | None = None,
    config: dict[str, Any] | None = None,
    node: NodeState = HOOK,
    mounts: tuple[str, ...] = ("/models",),
    pod: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    runtime: Runtime | None = None,
    explain: bool = False,
) -> WarmupPlan:
    one = Pod(id="p", namespace="prod", annotations=pairs(annotations or {}), labels=pairs(labels or {}))
    other = Container(
        id="c1", name="server", image="img", mounts=tuple(Mount(destination=d, type="bind") for d in mounts)
    )
    return decide(
        replace(one, **(pod or {})),
        replace(other, **(container or {})),
        make_config(config or {}),
        runtime if runtime is not None else Runtime(),
        node,
        explain=explain,
    )


def ask(key: str, value: str, **more: Any) -> WarmupPlan:
    return plan({"profile.nri-warmup.dev": "llm", f"{key}.nri-warmup.dev": value}, **more)


def codes(found: WarmupPlan, kind: ReasonKind | None = None) -> list[str]:
    return [reason.code for reason in found.reasons if kind in (None, reason.kind)]


def files(found: WarmupPlan) -> WarmFiles:
    (action,) = found.actions
    assert isinstance(action, WarmFiles)
    return action


def test_no_match() -> None:
    found = plan()
    assert found.is_empty
    assert found.adjustment.is_empty
    assert codes(found) == ["no-match"]


def test_annotation_picks_the_profile() -> None:
    found = plan({"profile.nri-warmup.dev": "llm"})
    assert found.profile == "llm"
    assert files(found).patterns == ("/models/**",)
    assert found.adjustment == Adjustment(annotations=(("planned.nri-warmup.dev", "llm"),))
    assert codes(found) == ["profile-annotation", "files-profile"]


def test_selector_picks_the_profile_of_a_container_that_sees_the_files() -> None:
    found = plan(labels={"app": "llm"})
    assert found.profile == "llm"
    assert codes(found, ReasonKind.CHOSEN)[0] == "profile-selector"
    assert "the mount at /models can hold /models/**" in found.reasons[0].text


def test_selector_leaves_a_container_alone_that_sees_none() -> None:
    found = plan(labels={"app": "llm"}, mounts=("/etc/config",))
    assert found.is_empty
    assert codes(found) == ["no-sight", "no-match"]


@pytest.mark.parametrize(
    "selector",
    [
        {"profile": "llm", "matchLabels": {"app": "llm"}, "containers": ["serv*"]},
        {"profile": "llm", "matchExpressions": [{"key": "container", "operator": "In", "values": ["server"]}]},
        {"profile": "llm", "matchExpressions": [{"key": "image", "operator": "Matches", "values": ["im*"]}]},
    ],
)
def test_selector_that_names_the_container_needs_no_mount(selector: dict[str, Any]) -> None:
    found = plan(labels={"app": "llm"}, mounts=(), config={"selectors": [selector]})
    assert found.profile == "llm"


def test_annotation_addressed_to_the_container_needs_no_mount() -> None:
    asked = {"deadline.nri-warmup.dev/container.server": "5s"}
    found = plan(asked, labels={"app": "llm"}, mounts=())
    assert (found.profile, found.deadline_s) == ("llm", 5.0)
    other = {"deadline.nri-warmup.dev/container.other": "5s"}
    assert plan(other, labels={"app": "llm"}, mounts=()).is_empty


def test_first_selector_wins_and_one_without_sight_is_passed_over() -> None:
    selectors = [
        {"profile": "bare", "matchLabels": {"app": "llm"}},
        {"profile": "held", "matchLabels": {"app": "llm"}},
        {"profile": "llm"},
    ]
    found = plan(labels={"app": "llm"}, config={"selectors": selectors})
    assert found.profile == "held"
    assert codes(found)[0] == "no-sight"


def test_annotation_beats_selector() -> None:
    assert plan({"profile.nri-warmup.dev": "held"}, labels={"app": "llm"}).profile == "held"


def test_opt_out_beats_selector() -> None:
    found = plan({"profile.nri-warmup.dev": ""}, labels={"app": "llm"})
    assert found.is_empty
    assert codes(found) == ["opt-out"]


def test_unknown_profile_is_ignored_with_the_nearest_and_the_selector_goes_on() -> None:
    found = plan({"profile.nri-warmup.dev": "lmm"}, labels={"app": "llm"})
    assert found.profile == "llm"
    assert found.reasons[0].code == "unknown-profile"
    assert "did you mean llm?" in found.reasons[0].text
    assert codes(plan({"profile.nri-warmup.dev": "lmm"})) == ["unknown-profile", "no-match"]


def test_profile_that_an_annotation_may_not_name() -> None:
    limits = {"limits": {"annotation_profiles": ["llm"]}}
    found = plan({"profile.nri-warmup.dev": "held"}, config=limits)
    assert found.is_empty
    assert codes(found) == ["profile-not-allowed", "no-match"]
    assert plan({"profile.nri-warmup.dev": "llm"}, config=limits).profile == "llm"
    assert "held" not in plan({"profile.nri-warmup.dev": "hold"}, config=limits).reasons[0].text.split(";")[1]


def test_files_alone_take_the_first_profile_that_may_be_asked_for() -> None:
    asked = {"files.nri-warmup.dev": "/data/x"}
    found = plan(asked)
    assert (found.profile, files(found).patterns) == ("llm", ("/data/x",))
    assert plan(asked, config={"limits": {"annotation_profiles": ["held"]}}).profile == "held"
    none = plan(asked, config={"limits": {"annotation_profiles": []}})
    assert codes(none) == ["no-profile", "no-match"]


def test_other_keys_alone_pick_nothing() -> None:
    assert codes(plan({"gate.nri-warmup.dev": "hook"})) == ["no-profile", "no-match"]


def test_files_by_annotation_replace_the_profile_s() -> None:
    assert files(ask("files", "/a\n/b")).patterns == ("/a", "/b")


def test_profile_without_files_and_nobody_names_any() -> None:
    found = plan({"profile.nri-warmup.dev": "bare"})
    assert found.is_empty
    assert codes(found) == ["profile-annotation", "no-files"]


def test_built_in_profile() -> None:
    pod = Pod(id="p", annotations=pairs({"profile.nri-warmup.dev": "model"}))
    found = decide(pod, Container(id="c"), default_config(), Runtime(), NodeState())
    assert found.profile == "model"
    assert "/models/**" in files(found).patterns


@pytest.mark.parametrize(
    ("pod", "container", "config", "code"),
    [
        ({"runtime_handler": "kata-qemu"}, {}, {}, "sandboxed"),
        ({"runtime_handler": "runsc"}, {}, {}, "sandboxed"),
        ({"runtime_handler": "mine"}, {}, {"sandboxed_handlers": ["mine"]}, "sandboxed"),
        ({"namespace": "kube-system"}, {}, {}, "skipped-namespace"),
        ({"namespace": "warmup"}, {}, {"own_namespace": "warmup"}, "own-namespace"),
        ({}, {"annotations": (("io.kubernetes.cri.container-type", "sandbox"),)}, {}, "pause"),
        ({}, {"annotations": (("io.kubernetes.cri-o.ContainerType", "sandbox"),)}, {}, "pause"),
    ],
)
def test_left_alone(pod: dict[str, Any], container: dict[str, Any], config: dict[str, Any], code: str) -> None:
    asked = {"profile.nri-warmup.dev/container.server": "llm"}
    found = plan(asked, labels={"app": "llm"}, pod=pod, container=container, config=config)
    assert found.is_empty
    assert found.adjustment.is_empty
    assert codes(found) == [code]


def test_an_empty_handler_and_namespace_are_nobody_s() -> None:
    config = {"sandboxed_handlers": ["*"], "own_namespace": "", "skip_namespaces": []}
    asked = {"profile.nri-warmup.dev": "llm"}
    assert plan(asked, pod={"runtime_handler": "", "namespace": ""}, config=config).profile == "llm"


def test_annotation_keys_can_be_taken_away() -> None:
    limits = {"limits": {"annotation_keys": ["profile"]}}
    found = ask("files", "/etc/x", config=limits)
    assert files(found).patterns == ("/models/**",)
    assert codes(found, ReasonKind.CUT) == ["annotation-not-allowed"]
    no_profile = {"limits": {"annotation_keys": ["files"]}}
    assert plan({"profile.nri-warmup.dev": ""}, labels={"app": "llm"}, config=no_profile).profile == "llm"


def test_nonsense_is_ignored_and_the_rest_holds() -> None:
    found = ask("deadline", "soon")
    assert (found.profile, found.deadline_s) == ("llm", 300.0)
    assert codes(found, ReasonKind.IGNORED) == ["bad-annotation"]
    assert found.reasons[0].text.startswith("deadline.nri-warmup.dev (container server): 'soon' is not a duration")


def test_deadline() -> None:
    assert ask("deadline", "5s").deadline_s == 5.0
    found = ask("deadline", "9h")
    assert found.deadline_s == 3600.0
    assert codes(found, ReasonKind.CUT) == ["deadline-cut"]
    own = {"profiles": [{"name": "llm", "files": ["/m"], "deadline": "2h"}], "selectors": None}
    assert plan({"profile.nri-warmup.dev": "llm"}, config=own).deadline_s == 3600.0


def test_max_bytes() -> None:
    assert files(ask("max-bytes", "1Gi")).max_bytes == 1 << 30
    assert files(ask("deadline", "1s")).max_bytes == 1 << 44
    found = ask("max-bytes", "2Gi", config={"limits": {"max_bytes": "1Gi"}})
    assert files(found).max_bytes == 1 << 30
    assert codes(found, ReasonKind.CUT) == ["bytes-cut"]
    found = ask("max-bytes", "2Gi", config={"limits": {"namespace_bytes": "1Gi"}})
    assert files(found).max_bytes == 1 << 30
    assert codes(found, ReasonKind.CUT) == ["quota-cut"]


def test_patterns_are_cut() -> None:
    found = ask("files", "/a\n/b\n/c", config={"limits": {"max_patterns": 2}})
    assert files(found).patterns == ("/a", "/b")
    assert codes(found, ReasonKind.CUT) == ["patterns-cut"]


def test_residency() -> None:
    found = ask("residency", "active")
    assert files(found).residency is Residency.INACTIVE
    assert codes(found, ReasonKind.CUT) == ["residency-not-allowed"]
    allowed = {"limits": {"annotation_residencies": ["active"]}}
    assert files(ask("residency", "active", config=allowed)).residency is Residency.ACTIVE


def test_held_only_where_something_holds() -> None:
    allowed = {"limits": {"annotation_residencies": ["held"]}}
    found = ask("residency", "held", config=allowed)
    assert files(found).residency is Residency.INACTIVE
    assert codes(found, ReasonKind.SKIPPED) == ["held-unavailable"]
    found = ask("residency", "held", config=allowed, node=replace(HOOK, can_hold=True))
    assert files(found).residency is Residency.HELD


def test_hook_gate() -> None:
    found = ask("gate", "hook")
    assert (found.gate, found.hold_s, found.on_error) == (Gate.HOOK, 30.0, OnError.OPEN)
    (hook,) = found.adjustment.hooks
    assert hook == Hook(
        stage="createRuntime",
        path="/usr/libexec/nri-warmup-hook",
        args=("nri-warmup-hook", "--id", "c1", "--socket", "/run/c.sock", "--deadline", "32"),
        env=("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",),
        timeout_s=37,
    )


def test_closed_hook() -> None:
    found = plan({"profile.nri-warmup.dev": "held"})
    assert found.on_error is OnError.CLOSED
    assert found.adjustment.hooks[0].args[-1] == "--closed"


@pytest.mark.parametrize(
    "node",
    [NodeState(), NodeState(hook_usable=True), replace(HOOK, hook_usable=False, hook_reason="python3 is missing")],
)
def test_hook_that_cannot_be_had(node: NodeState) -> None:
    found = plan({"profile.nri-warmup.dev": "held"}, node=node)
    assert (found.profile, found.gate, found.hold_s, found.on_error) == ("held", Gate.NONE, 0.0, OnError.OPEN)
    assert found.adjustment.hooks == ()
    assert codes(found)[-2:] == ["hook-unusable", "closed-needs-hook"]
    if node.hook_path:
        assert "python3 is missing" in str(found.reasons)


def test_inside_our_own_hook_nothing_is_injected() -> None:
    found = plan({"profile.nri-warmup.dev": "held"}, node=NodeState(hook_running=True))
    assert (found.gate, found.on_error, found.adjustment.hooks) == (Gate.HOOK, OnError.CLOSED, ())


@pytest.mark.parametrize(
    ("hold", "deadline", "expected", "cut"),
    [("20s", "10s", 10.0, []), ("5m", "10m", 98.0, ["hold-cut"]), ("1500ms", "5m", 1.5, [])],
)
def test_hold_of_a_hook(hold: str, deadline: str, expected: float, cut: list[str]) -> None:
    profile = {"name": "p", "files": ["/m"], "gate": "hook", "hold": hold, "deadline": deadline}
    found = plan({"profile.nri-warmup.dev": "p"}, config={"profiles": [profile], "selectors": None})
    assert found.hold_s == expected
    assert found.adjustment.hooks[0].args[6] == f"{expected + 2:g}"
    assert found.adjustment.hooks[0].timeout_s in (int(expected) + 7, int(expected) + 8)
    assert codes(found, ReasonKind.CUT) == cut


@pytest.mark.parametrize("gate", ["hook", "start"])
def test_no_hold_is_no_gate(gate: str) -> None:
    profile = {"name": "p", "files": ["/m"], "gate": gate, "hold": "0"}
    found = plan({"profile.nri-warmup.dev": "p"}, config={"profiles": [profile], "selectors": None})
    assert found.gate is Gate.NONE
    assert codes(found)[-1] == "no-hold"


def test_gate_that_an_annotation_may_not_choose() -> None:
    found = ask("gate", "hook", config={"limits": {"annotation_gates": ["none"]}})
    assert found.gate is Gate.NONE
    assert codes(found, ReasonKind.CUT) == ["gate-not-allowed"]


def test_start_is_never_an_annotation_s() -> None:
    found = ask("gate", "start")
    assert found.gate is Gate.NONE
    assert codes(found, ReasonKind.CUT) == ["gate-not-allowed"]
    crafted = make_config({})
    crafted = replace(crafted, limits=replace(crafted.limits, annotation_gates=frozenset(Gate)))
    pod = Pod(id="p", annotations=pairs({"profile.nri-warmup.dev": "llm", "gate.nri-warmup.dev": "start"}))
    assert decide(pod, Container(id="c"), crafted, Runtime(), HOOK).gate is Gate.NONE


def test_an_annotation_may_give_up_the_profile_s_gate() -> None:
    found = plan({"profile.nri-warmup.dev": "held", "gate.nri-warmup.dev": "none"})
    assert (found.gate, found.on_error) == (Gate.NONE, OnError.OPEN)


def test_start_gate() -> None:
    found = plan({"profile.nri-warmup.dev": "start"})
    assert (found.gate, found.hold_s, found.adjustment.hooks) == (Gate.START, 0.3, ())


def test_start_gate_keeps_away_from_the_runtime_s_time_out() -> None:
    found = plan({"profile.nri-warmup.dev": "start"}, runtime=Runtime(request_timeout_s=0.4))
    assert (found.gate, found.hold_s) == (Gate.START, 0.2)
    assert codes(found, ReasonKind.CUT) == ["hold-cut"]


def test_start_gate_past_the_host_s_budget() -> None:
    found = plan({"profile.nri-warmup.dev": "start"}, node=NodeState(start_gate_left_s=0.1))
    assert found.gate is Gate.NONE
    assert codes(found)[-1] == "start-budget"
    assert plan({"profile.nri-warmup.dev": "start"}, node=NodeState(start_gate_left_s=0.3)).gate is Gate.START


def test_observe_changes_nothing() -> None:
    found = plan({"profile.nri-warmup.dev": "watch", "gate.nri-warmup.dev": "hook"})
    assert found.mode is Mode.OBSERVE
    assert found.adjustment.is_empty
    assert found.gate is Gate.NONE
    assert files(found).patterns == ("/models/**",)
    assert codes(found)[-2:] == ["gate-observe", "observe"]


def test_explain_tells_of_each_selector() -> None:
    config = {
        "selectors": [
            {"profile": "llm", "matchLabels": {"app": "llm"}},
            {"profile": "llm", "containers": ["x"]},
        ]
    }
    assert codes(plan(config=config)) == ["no-match"]
    found = plan(config=config, explain=True)
    assert codes(found) == ["selector-mismatch", "selector-mismatch", "no-match"]
    assert found.reasons[0].text == "selectors[0] (profile llm): label:app is absent, wanted In [llm]"
    assert found.reasons[1].text == "selectors[1] (profile llm): container is 'server', wanted one of [x]"
