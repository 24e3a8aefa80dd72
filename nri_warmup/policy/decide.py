"""What to do for one container: the request, the operator's file and the host's state -> WarmupPlan. Pure.

Order: who is left alone (sandboxed runtimes, our own and the system's namespaces), which profile (annotation, else the
first selector that matches), what of it to warm, whether to hold the entrypoint. Every choice and every refusal is a
reason in the plan. Nothing here can fail a container: what is asked beyond the limits is cut, nonsense is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from nri_warmup.fields import nearest
from nri_warmup.model.lifecycle import Container, Pod, Runtime, lookup
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import Adjustment, Reason, ReasonKind, WarmupPlan
from nri_warmup.model.profile import Config, Gate, Mode, Profile
from nri_warmup.model.request import WarmupRequest
from nri_warmup.policy.gate import GateChoice, choose_deadline, choose_gate
from nri_warmup.policy.program import ProgramChoice, choose_program
from nri_warmup.policy.select import matches_any, mismatch, names_container
from nri_warmup.policy.warmset import sight, warm_files
from nri_warmup.request import NOTHING_ASKED, PLANNED, parse_request

_SANDBOX_MARKS = (
    ("io.kubernetes.cri.container-type", "sandbox"),
    ("io.kubernetes.cri-o.ContainerType", "sandbox"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    profile: Profile
    by_annotation: bool


def decide(
    pod: Pod, container: Container, config: Config, runtime: Runtime, node: NodeState, *, explain: bool = False
) -> WarmupPlan:
    """The plan for ``container``; same input, same plan. ``explain`` adds why each selector did not match."""
    reasons: list[Reason] = []
    if not _leave_alone(pod, container, config, reasons):
        request = _allowed(parse_request(pod, container), config, reasons)
        choice = _choose(pod, container, config, request, reasons, explain=explain)
        if choice is not None:
            return _plan(choice.profile, container, config, runtime, node, request, reasons)
    return WarmupPlan(reasons=tuple(reasons))


def _leave_alone(pod: Pod, container: Container, config: Config, reasons: list[Reason]) -> bool:
    if pod.runtime_handler and matches_any(pod.runtime_handler, config.sandboxed_handlers):
        text = f"runtime handler {_shown(pod.runtime_handler)} is sandboxed: its process is not the container"
        _add(reasons, ReasonKind.SKIPPED, "sandboxed", text)
    elif config.own_namespace and pod.namespace == config.own_namespace:
        _add(reasons, ReasonKind.SKIPPED, "own-namespace", f"namespace {pod.namespace} is our own (own_namespace)")
    elif pod.namespace in config.skip_namespaces:
        text = f"namespace {_shown(pod.namespace)} is left alone (skip_namespaces)"
        _add(reasons, ReasonKind.SKIPPED, "skipped-namespace", text)
    elif any(lookup(container.annotations, key) == value for key, value in _SANDBOX_MARKS):
        _add(reasons, ReasonKind.SKIPPED, "pause", "the pod's own pause container maps no model")
    return bool(reasons)


def _allowed(request: WarmupRequest, config: Config, reasons: list[Reason]) -> WarmupRequest:
    """The request without what could not be understood and without the keys that annotations may not set."""
    if request is NOTHING_ASKED:
        return request
    for complaint in request.complaints:
        _add(reasons, ReasonKind.IGNORED, "bad-annotation", str(complaint))
    asked: dict[str, bool] = {
        "profile": request.profile is not None or request.opt_out,
        "files": request.files is not None,
        "gate": request.gate is not None,
        "deadline": request.deadline_s is not None,
        "residency": request.residency is not None,
        "max-bytes": request.max_bytes is not None,
    }
    refused = [key for key, present in asked.items() if present and key not in config.limits.annotation_keys]
    for key in refused:
        text = f"annotation {key} is not allowed here (limits.annotation_keys)"
        _add(reasons, ReasonKind.CUT, "annotation-not-allowed", text)
    return WarmupRequest(
        profile=None if "profile" in refused else request.profile,
        opt_out=request.opt_out and "profile" not in refused,
        files=None if "files" in refused else request.files,
        gate=None if "gate" in refused else request.gate,
        deadline_s=None if "deadline" in refused else request.deadline_s,
        residency=None if "residency" in refused else request.residency,
        max_bytes=None if "max-bytes" in refused else request.max_bytes,
        named=request.named,
    )


def _choose(
    pod: Pod, container: Container, config: Config, request: WarmupRequest, reasons: list[Reason], *, explain: bool
) -> _Choice | None:
    if request.opt_out:
        _add(reasons, ReasonKind.SKIPPED, "opt-out", "an empty profile annotation opts out")
        return None
    if request.profile is not None and (profile := _asked_profile(request.profile, config, reasons)) is not None:
        _add(reasons, ReasonKind.CHOSEN, "profile-annotation", f"profile {profile.name} by annotation")
        return _Choice(profile=profile, by_annotation=True)
    if (profile := _selected(pod, container, config, request, reasons, explain=explain)) is not None:
        return _Choice(profile=profile, by_annotation=False)
    if request.files is not None and request.profile is None:
        for profile in config.profiles:
            if _may_ask(profile.name, config):
                text = (
                    f"profile {profile.name}, the first that an annotation may name, for files that are asked for alone"
                )
                _add(reasons, ReasonKind.CHOSEN, "profile-files", text)
                return _Choice(profile=profile, by_annotation=True)
    if request.profile is None and not request.is_empty:
        _add(reasons, ReasonKind.IGNORED, "no-profile", "the annotations pick no profile, and no selector does")
    _add(reasons, ReasonKind.SKIPPED, "no-match", "no annotation and no selector picks a profile for this container")
    return None


def _asked_profile(name: str, config: Config, reasons: list[Reason]) -> Profile | None:
    profile = config.profile(name)
    if profile is None:
        names = tuple(p.name for p in config.profiles if _may_ask(p.name, config))
        _add(reasons, ReasonKind.IGNORED, "unknown-profile", f"there is no profile {name!r}; {nearest(name, names)}")
    elif not _may_ask(name, config):
        text = f"profile {name} is not an annotation's to choose (limits.annotation_profiles)"
        _add(reasons, ReasonKind.CUT, "profile-not-allowed", text)
        return None
    return profile


def _may_ask(name: str, config: Config) -> bool:
    allowed = config.limits.annotation_profiles
    return allowed is None or name in allowed


def _selected(
    pod: Pod, container: Container, config: Config, request: WarmupRequest, reasons: list[Reason], *, explain: bool
) -> Profile | None:
    """The profile of the first selector that matches and, where it names no container, whose files this one can see."""
    for index, selector in enumerate(config.selectors):
        label = f"selectors[{index}] (profile {selector.profile})"
        if (why := mismatch(selector, pod, container)) is not None:
            if explain:
                _add(reasons, ReasonKind.SKIPPED, "selector-mismatch", f"{label}: {why}")
            continue
        profile = config.profile(selector.profile)
        if profile is None:
            continue
        if names_container(selector) or request.named or request.files is not None:
            _add(reasons, ReasonKind.CHOSEN, "profile-selector", f"{label} matches")
            return profile
        seen = sight(profile.files, container.mounts)
        if seen is not None:
            text = f"{label} matches, and the mount at {_shown(seen[1])} can hold {_shown(seen[0])}"
            _add(reasons, ReasonKind.CHOSEN, "profile-selector", text)
            return profile
        text = (
            f"{label} matches the pod, but no mount of this container can hold one of its files; "
            "for a model inside the image name the container in the selector"
        )
        _add(reasons, ReasonKind.SKIPPED, "no-sight", text)
    return None


def _plan(
    profile: Profile,
    container: Container,
    config: Config,
    runtime: Runtime,
    node: NodeState,
    request: WarmupRequest,
    reasons: list[Reason],
) -> WarmupPlan:
    files = warm_files(profile, request, config.limits, node, reasons)
    if files is None and profile.exec is None:
        return WarmupPlan(reasons=tuple(reasons))
    deadline_s = choose_deadline(profile, request, config.limits, reasons)
    gate = choose_gate(profile, request, config.limits, runtime, node, container, deadline_s, reasons)
    program = choose_program(profile, node, gate.hold_s if gate.gate is Gate.HOOK else 0.0, reasons)
    if files is None and program is None:
        return WarmupPlan(reasons=tuple(reasons))
    if profile.mode is Mode.OBSERVE:
        text = f"mode observe of profile {profile.name}: measured, nothing read and nothing changed"
        _add(reasons, ReasonKind.CHOSEN, "observe", text)
    return WarmupPlan(
        profile=profile.name,
        gate=gate.gate,
        deadline_s=deadline_s,
        hold_s=gate.hold_s,
        on_error=gate.on_error,
        mode=profile.mode,
        reserve_bytes=profile.reserve_bytes,
        adjustment=_adjustment(profile, gate, program),
        actions=() if files is None else (files,),
        reasons=tuple(reasons),
    )


def _adjustment(profile: Profile, gate: GateChoice, program: ProgramChoice | None) -> Adjustment:
    if profile.mode is Mode.OBSERVE:
        return Adjustment()
    return Adjustment(
        annotations=((PLANNED, profile.name),),
        mounts=() if program is None else program.mounts,
        hooks=(*((gate.hook,) if gate.hook else ()), *((program.hook,) if program else ())),
    )


def _add(reasons: list[Reason], kind: ReasonKind, code: str, text: str) -> None:
    reasons.append(Reason(kind=kind, code=code, text=text))


def _shown(text: str) -> str:
    """A tenant's text inside a reason: bounded, and without what a terminal would obey."""
    if text.isprintable() and 0 < len(text) <= 200:
        return text
    shown = "".join(c if c.isprintable() else "?" for c in text[:200])
    return shown or "''"
