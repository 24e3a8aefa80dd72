"""Whether, how and for how long the entrypoint is held. Pure.

What cannot be had falls back to ``none`` with a reason, never to a failed container: the hook is only injected where it
passed its self-test, and StartContainer is only held within the host's budget, for the runtime's lock is held with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nri_warmup.model.lifecycle import Container, Runtime
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import Hook, Reason, ReasonKind
from nri_warmup.model.profile import Gate, Limits, Mode, OnError, Profile
from nri_warmup.model.request import WarmupRequest
from nri_warmup.units import render_duration

MAX_HOOK_S = 100
"""kubelet gives a start up after two minutes."""
HOOK_LATER_S = 2
"""The hook's own deadline beyond the hold: it is the daemon that lets go, the hook only where the daemon does not."""
MAX_HOLD_S = float(MAX_HOOK_S - HOOK_LATER_S)
HOOK_GRACE_S = 5
"""The runtime's own time-out on top of the hook's deadline: a last resort that fails the container."""
HOOK_STAGE = "createRuntime"
HOOK_ENV = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",)
"""Without an environment of its own a hook inherits the runtime's, with proxies and tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateChoice:
    gate: Gate
    hold_s: float
    on_error: OnError
    hook: Hook | None = None


def choose_deadline(profile: Profile, request: WarmupRequest, limits: Limits, reasons: list[Reason]) -> float:
    """Seconds that the whole warm-up may take, from the event that opened its window."""
    wanted, origin = profile.deadline_s, f"profile {profile.name}"
    if request.deadline_s is not None:
        wanted, origin = request.deadline_s, "the annotation"
        _add(reasons, ReasonKind.CHOSEN, "deadline-asked", f"deadline {render_duration(wanted)} by annotation")
    if wanted > limits.max_deadline_s:
        ceiling = render_duration(limits.max_deadline_s)
        text = f"deadline {render_duration(wanted)} of {origin} is past limits.max_deadline; {ceiling} instead"
        _add(reasons, ReasonKind.CUT, "deadline-cut", text)
        return limits.max_deadline_s
    return wanted


def choose_gate(
    profile: Profile,
    request: WarmupRequest,
    limits: Limits,
    runtime: Runtime,
    node: NodeState,
    container: Container,
    deadline_s: float,
    reasons: list[Reason],
) -> GateChoice:
    wanted = _wanted(profile, request, limits, reasons)
    if profile.mode is Mode.OBSERVE and wanted is not Gate.NONE:
        _add(
            reasons, ReasonKind.SKIPPED, "gate-observe", f"mode observe changes nothing: gate none, not {wanted.value}"
        )
        wanted = Gate.NONE
    match wanted:
        case Gate.NONE:
            choice = None
        case Gate.HOOK:
            choice = _hook(profile, node, container, deadline_s, reasons)
        case Gate.START:
            choice = _start(profile, runtime, node, deadline_s, reasons)
    if choice is None:
        choice = GateChoice(gate=Gate.NONE, hold_s=0.0, on_error=OnError.OPEN)
    if profile.on_error is OnError.CLOSED and choice.on_error is OnError.OPEN:
        text = "on_error: closed has no effect without gate: hook, only a hook can stop a container; open instead"
        _add(reasons, ReasonKind.IGNORED, "closed-needs-hook", text)
    return choice


def _wanted(profile: Profile, request: WarmupRequest, limits: Limits, reasons: list[Reason]) -> Gate:
    asked = request.gate
    if asked is None or asked is profile.gate:
        return profile.gate
    if asked is Gate.START or asked not in limits.annotation_gates:
        why = "is the operator's choice only" if asked is Gate.START else "is not among limits.annotation_gates"
        text = f"gate {asked.value} by annotation {why}; {profile.gate.value} instead"
        _add(reasons, ReasonKind.CUT, "gate-not-allowed", text)
        return profile.gate
    _add(reasons, ReasonKind.CHOSEN, "gate-asked", f"gate {asked.value} by annotation")
    return asked


def _hook(
    profile: Profile, node: NodeState, container: Container, deadline_s: float, reasons: list[Reason]
) -> GateChoice | None:
    if not node.hook_running and not (node.hook_usable and node.hook_path):
        why = "no path of it is known" if node.hook_usable else node.hook_reason
        _add(reasons, ReasonKind.SKIPPED, "hook-unusable", f"gate hook is not to be had: {why}; none instead")
        return None
    hold_s = min(profile.hold_s, deadline_s)
    if hold_s > MAX_HOLD_S:
        text = f"hold {render_duration(hold_s)} is near what kubelet waits; {render_duration(MAX_HOLD_S)} instead"
        _add(reasons, ReasonKind.CUT, "hold-cut", text)
        hold_s = MAX_HOLD_S
    if hold_s <= 0:
        _add(reasons, ReasonKind.CHOSEN, "no-hold", "hold is zero: nothing to hold the entrypoint for, gate none")
        return None
    text = f"the entrypoint is held until all is warm, at most {render_duration(hold_s)}; what is left warms beside it"
    _add(reasons, ReasonKind.CHOSEN, "gate-hook", text)
    hook = None if node.hook_running else _hook_entry(profile, node, container, hold_s)
    return GateChoice(gate=Gate.HOOK, hold_s=hold_s, on_error=profile.on_error, hook=hook)


def _hook_entry(profile: Profile, node: NodeState, container: Container, hold_s: float) -> Hook:
    args = (
        node.hook_path.rsplit("/", 1)[-1],
        *("--id", container.id),
        *("--socket", node.control_socket),
        *("--deadline", f"{hold_s + HOOK_LATER_S:g}"),
        *(("--closed",) if profile.on_error is OnError.CLOSED else ()),
    )
    return Hook(
        stage=HOOK_STAGE,
        path=node.hook_path,
        args=args,
        env=HOOK_ENV,
        timeout_s=ceil(hold_s) + HOOK_LATER_S + HOOK_GRACE_S,
    )


def _start(
    profile: Profile, runtime: Runtime, node: NodeState, deadline_s: float, reasons: list[Reason]
) -> GateChoice | None:
    hold_s = min(profile.hold_s, deadline_s)
    longest_s = runtime.request_timeout_s / 2
    if hold_s > longest_s:
        text = (
            f"hold {render_duration(hold_s)} is too near the runtime's time-out of "
            f"{render_duration(runtime.request_timeout_s)}; {render_duration(longest_s)} instead"
        )
        _add(reasons, ReasonKind.CUT, "hold-cut", text)
        hold_s = longest_s
    if hold_s <= 0:
        _add(reasons, ReasonKind.CHOSEN, "no-hold", "hold is zero: nothing to hold the entrypoint for, gate none")
        return None
    left = node.start_gate_left_s
    if left is not None and left < hold_s:
        text = (
            f"gate start: {render_duration(hold_s)} of holding StartContainer is more than the "
            f"{render_duration(max(left, 0.0))} left of the host's budget for it; none instead"
        )
        _add(reasons, ReasonKind.SKIPPED, "start-budget", text)
        return None
    text = f"StartContainer, and with it the runtime, is held until all is warm, at most {render_duration(hold_s)}"
    _add(reasons, ReasonKind.CHOSEN, "gate-start", text)
    return GateChoice(gate=Gate.START, hold_s=hold_s, on_error=OnError.OPEN)


def _add(reasons: list[Reason], kind: ReasonKind, code: str, text: str) -> None:
    reasons.append(Reason(kind=kind, code=code, text=text))
