"""What holds of every decision: same input, same plan; what is planned is decoded; limits are never passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from nri_warmup.config import ANNOTATION_KEYS
from nri_warmup.model.lifecycle import Container, Mount, Pod, Runtime, pairs
from nri_warmup.model.node import MemoryLevel, NodeState
from nri_warmup.model.plan import WarmFiles, WarmupPlan
from nri_warmup.model.profile import (
    Config,
    Gate,
    Limits,
    MatchExpression,
    Mode,
    OnError,
    Operator,
    Profile,
    Residency,
    Selector,
)
from nri_warmup.policy.decide import decide
from nri_warmup.policy.interest import interest_tokens
from nri_warmup.policy.memory import Pledge, budget
from nri_warmup.policy.render import render_plan_json, render_plan_text

words = st.sampled_from(["", "a", "llm", "quay.io/x/vllm:1", "vllm", "a]b", "ab", "é", "models"])
globs = st.sampled_from(
    ["a*", "*vllm*", "quay.io/*/vllm:?", "[al]*", "l[!x]m", "a[]]b", "a[b]", "a]b", "é", "x[", "ll?"]
)
names = st.sampled_from(["one", "two", "three"])
patterns = st.sampled_from(["/models/**", "/models/*.gguf", "/**/x", "/a", "/data/*/y"])
durations = st.floats(0.001, 10_000)
sizes = st.integers(1, 1 << 50)


@st.composite
def expressions(draw: st.DrawFn) -> MatchExpression:
    key = draw(st.sampled_from(["namespace", "container", "image", "runtime-handler", "label:app", "label:tier"]))
    operator = draw(st.sampled_from(Operator))
    if operator in (Operator.EXISTS, Operator.DOES_NOT_EXIST):
        return MatchExpression(key=key, operator=operator)
    values = draw(st.lists(globs if operator is Operator.MATCHES else words, min_size=1, max_size=3))
    return MatchExpression(key=key, operator=operator, values=tuple(values))


profiles = st.builds(
    Profile,
    name=st.just(""),
    files=st.lists(patterns, min_size=1, max_size=3).map(tuple),
    gate=st.sampled_from(Gate),
    deadline_s=durations,
    hold_s=st.just(0.0) | durations,
    residency=st.sampled_from(Residency),
    on_error=st.sampled_from(OnError),
    mode=st.sampled_from(Mode),
    max_bytes=st.none() | sizes,
)
limits = st.builds(
    Limits,
    annotation_profiles=st.none() | st.lists(names, max_size=2).map(tuple),
    annotation_keys=st.just(frozenset(ANNOTATION_KEYS)) | st.frozensets(st.sampled_from(ANNOTATION_KEYS)),
    annotation_gates=st.frozensets(st.sampled_from(Gate)),
    annotation_residencies=st.frozensets(st.sampled_from(Residency)),
    max_bytes=sizes,
    max_deadline_s=durations,
    max_files=st.integers(1, 100),
    max_patterns=st.integers(1, 3),
    namespace_bytes=st.none() | sizes,
)
configs = st.builds(
    Config,
    profiles=st.tuples(profiles, profiles, profiles).map(
        lambda found: tuple(replace(p, name=name) for p, name in zip(found, ("one", "two", "three"), strict=True))
    ),
    selectors=st.lists(
        st.builds(
            Selector,
            profile=names,
            match=st.lists(expressions(), max_size=3).map(tuple),
            containers=st.lists(globs, max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    limits=limits,
    skip_namespaces=st.sampled_from([frozenset(), frozenset({"a"})]),
    own_namespace=st.sampled_from(["", "llm"]),
    sandboxed_handlers=st.just(("a[]]b", "é")),
)
# Nobody is left alone and nobody is annotated: selectors alone pick, and nearly every container sees a file.
selecting = st.builds(
    Config,
    profiles=st.just((Profile(name="one", files=("/**",)),)),
    selectors=st.lists(
        st.builds(
            Selector,
            profile=st.just("one"),
            match=st.lists(expressions(), min_size=1, max_size=2).map(tuple),
            containers=st.just(()) | st.lists(globs, min_size=1, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    skip_namespaces=st.just(frozenset()),
    sandboxed_handlers=st.just(()),
)
nonsense = st.dictionaries(
    st.builds(
        lambda key, suffix: f"{key}.nri-warmup.dev{suffix}",
        st.sampled_from([*ANNOTATION_KEYS, "nonsense"]),
        st.sampled_from(["", "/pod", "/container.a", "/container.llm"]),
    ),
    st.sampled_from(["", "one", "/models/x\n/y", "hook", "5s", "1Gi", "a: one", "?"]),
    max_size=1,
)
sensible = st.fixed_dictionaries(
    {},
    optional={
        "profile.nri-warmup.dev": names,
        "files.nri-warmup.dev/pod": st.sampled_from(["/models/x\n/y\n/z\n/w", "/a"]),
        "gate.nri-warmup.dev": st.sampled_from(["none", "hook", "start"]),
        "deadline.nri-warmup.dev/container.a": st.sampled_from(["5ms", "9s", "99h"]),
        "residency.nri-warmup.dev": st.sampled_from(["inactive", "active", "held"]),
        "max-bytes.nri-warmup.dev": st.sampled_from(["1", "1Gi", "7Ei"]),
    },
)
annotations = st.builds(lambda one, other: pairs(one | other), sensible, nonsense)
pods = st.builds(
    Pod,
    id=st.just("p"),
    namespace=words,
    runtime_handler=words,
    labels=st.dictionaries(st.sampled_from(["app", "tier", "x"]), words, max_size=3).map(pairs),
    annotations=annotations,
)
containers = st.builds(
    Container,
    id=st.just("c"),
    name=words,
    image=words,
    annotations=st.just(()) | annotations,
    mounts=st.lists(
        st.builds(Mount, destination=st.sampled_from(["/models", "/models/a", "/data", "/proc"]), type=st.just("bind")),
        max_size=2,
    ).map(tuple),
)
nodes = st.builds(
    NodeState,
    hook_usable=st.booleans(),
    hook_path=st.sampled_from(["", "/h"]),
    hook_running=st.booleans(),
    can_hold=st.booleans(),
    start_gate_left_s=st.none() | st.floats(-1, 2),
)
runtimes = st.builds(Runtime, request_timeout_s=st.floats(0.01, 10))


def strings(value: object) -> Iterator[str]:
    """Every text inside a value, as a message on the wire would hold them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from strings(item)
    elif is_dataclass(value) and not isinstance(value, Enum):
        for field in fields(value):
            yield from strings(getattr(value, field.name))


def check_interest(config: Config, pod: Pod, container: Container) -> None:
    plan = decide(pod, container, config, Runtime(), NodeState())
    payload = b"\xff".join(text.encode() for text in (*strings(pod), *strings(container)))
    wanted = any(all(token in payload for token in tokens) for tokens in interest_tokens(config))
    event(f"planned: {not plan.is_empty}, decoded: {wanted}")
    assert plan.is_empty or wanted


@given(selecting, pods, containers)
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_selector_would_plan_is_decoded(config: Config, pod: Pod, container: Container) -> None:
    mounts = (Mount(destination="/models", type="bind"),)
    check_interest(config, replace(pod, annotations=()), replace(container, annotations=(), mounts=mounts))


@given(configs, pods, containers)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_what_would_be_planned_is_decoded(config: Config, pod: Pod, container: Container) -> None:
    check_interest(config, pod, container)


@given(configs, pods, containers, nodes, runtimes)
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
def test_a_decision_keeps_to_the_limits_and_explains_itself(
    config: Config, pod: Pod, container: Container, node: NodeState, runtime: Runtime
) -> None:
    plan = decide(pod, container, config, runtime, node)
    event(f"profile: {plan.profile is not None}, gate: {plan.gate.value}")
    assert plan == decide(pod, container, config, runtime, node)
    explained = decide(pod, container, config, runtime, node, explain=True)
    assert (explained.profile, explained.adjustment, explained.actions) == (plan.profile, plan.adjustment, plan.actions)
    assert plan.reasons
    assert all(reason.code and reason.text for reason in plan.reasons)
    assert render_plan_text(plan)
    assert render_plan_json(plan)
    if plan.is_empty:
        assert (plan.adjustment.is_empty, plan.actions) == (True, ())
    else:
        check_planned(plan, config, pod, node, runtime)


def check_planned(plan: WarmupPlan, config: Config, pod: Pod, node: NodeState, runtime: Runtime) -> None:
    limits = config.limits
    profile = config.profile(plan.profile or "")
    assert profile is not None
    assert pod.namespace not in config.skip_namespaces
    (action,) = plan.actions
    assert isinstance(action, WarmFiles)
    assert 0 < len(action.patterns) <= limits.max_patterns
    assert action.max_files == limits.max_files
    assert 0 < action.max_bytes <= min(limits.max_bytes, limits.namespace_bytes or limits.max_bytes)
    assert 0 < plan.deadline_s <= limits.max_deadline_s
    asked = profile.residency if action.residency is profile.residency else None
    assert asked or action.residency in limits.annotation_residencies | {Residency.INACTIVE}
    assert action.residency is not Residency.HELD or node.can_hold
    assert plan.gate in (Gate.NONE, profile.gate) or plan.gate in limits.annotation_gates - {Gate.START}
    if plan.gate is Gate.NONE:
        assert (plan.hold_s, plan.on_error, plan.adjustment.hooks) == (0.0, OnError.OPEN, ())
    else:
        assert profile.mode is Mode.ENFORCE
        assert 0 < plan.hold_s <= min(plan.deadline_s, profile.hold_s)
    if plan.gate is Gate.HOOK:
        assert node.hook_running or (node.hook_usable and len(plan.adjustment.hooks) == 1)
        assert all(float(h.args[h.args.index("--deadline") + 1]) <= 100 for h in plan.adjustment.hooks)
    if plan.gate is Gate.START:
        assert plan.hold_s <= runtime.request_timeout_s / 2
        assert node.start_gate_left_s is None or plan.hold_s <= node.start_gate_left_s
    if profile.mode is Mode.OBSERVE:
        assert plan.adjustment.is_empty
    else:
        assert plan.adjustment.annotations == (("planned.nri-warmup.dev", plan.profile),)


amounts = st.none() | st.integers(0, 1 << 40)
levels = st.lists(
    st.builds(
        MemoryLevel,
        path=st.just("/x"),
        limit_bytes=amounts | st.just(9223372036854771712),
        high_bytes=amounts,
        usage_bytes=amounts,
        unreclaimable_bytes=amounts,
    ),
    max_size=4,
)


@given(levels, amounts, st.integers(0, 1 << 30), st.integers(0, 1 << 30), levels)
def test_a_budget_fits_below_every_limit_and_more_levels_never_add_to_it(
    some: list[MemoryLevel], available: int | None, reserve: int, node_reserve: int, more: list[MemoryLevel]
) -> None:
    node = NodeState(mem_available_bytes=available)
    found = budget(some, node, reserve, node_reserve)
    assert found.reasons
    if found.budget_bytes is None:
        assert available is None
        return
    assert found.budget_bytes >= 0
    if found.budget_bytes:
        for level in some:
            for bound in (level.limit_bytes, level.high_bytes):
                if bound is not None:
                    assert found.budget_bytes + (level.unreclaimable_bytes or 0) + reserve <= bound
        assert available is None or found.budget_bytes + node_reserve <= available
    larger = budget([*some, *more], node, reserve, node_reserve).budget_bytes
    assert larger is not None
    assert larger <= found.budget_bytes


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 1 << 40), max_size=4),
    st.none() | st.integers(0, 1 << 41),
    st.lists(st.tuples(st.sets(st.sampled_from("abcd")), st.integers(0, 1 << 41)), min_size=1, max_size=6),
)
def test_jobs_that_begin_one_after_the_other_never_get_more_than_fits_together(
    limits: dict[str, int], available: int | None, jobs: list[tuple[set[str], int]]
) -> None:
    node = NodeState(mem_available_bytes=available)
    pledges: list[Pledge] = []
    for names, want in jobs:
        chain = [MemoryLevel(path=name, limit_bytes=limits.get(name), unreclaimable_bytes=0) for name in sorted(names)]
        room = budget(chain, node, 0, 0, pledges).budget_bytes
        pledges.append(Pledge(levels=frozenset(names), n_bytes=want if room is None else min(want, room)))
    for name, limit in limits.items():
        assert sum(pledge.n_bytes for pledge in pledges if name in pledge.levels) <= limit
    assert available is None or sum(pledge.n_bytes for pledge in pledges) <= available
