"""A plan as JSON values and as text for a terminal. Pure.

The JSON form is an interface (``nri-warmup plan --json``, ``status --json``): sizes in bytes, times in seconds,
enumerations as the words of the configuration file. The text form strips what a terminal would obey from a tenant's
strings.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_warmup.model.plan import Adjustment, Hook, Reason, ReasonKind, WarmAction, WarmFiles, WarmupPlan
from nri_warmup.model.profile import Gate, Mode
from nri_warmup.units import render_duration, render_size

Json = dict[str, object]

_MARKS = {ReasonKind.CHOSEN: "+", ReasonKind.CUT: "<", ReasonKind.IGNORED: "!", ReasonKind.SKIPPED: "-"}


def render_plan_json(plan: WarmupPlan) -> Json:
    return {
        "profile": plan.profile,
        "mode": plan.mode.value,
        "gate": plan.gate.value,
        "hold_s": plan.hold_s,
        "deadline_s": plan.deadline_s,
        "on_error": plan.on_error.value,
        "reserve_bytes": plan.reserve_bytes,
        "adjustment": _adjustment_json(plan.adjustment),
        "actions": [_action_json(action) for action in plan.actions],
        "reasons": [{"kind": r.kind.value, "code": r.code, "text": r.text} for r in plan.reasons],
    }


def _adjustment_json(adjustment: Adjustment) -> Json:
    """Only what is asked for; an empty object asks the runtime for nothing."""
    parts: Json = {
        "annotations": dict(adjustment.annotations),
        "env": dict(adjustment.env),
        "mounts": [
            {"destination": m.destination, "source": m.source, "type": m.type, "options": list(m.options)}
            for m in adjustment.mounts
        ],
        "hooks": [_hook_json(hook) for hook in adjustment.hooks],
        "rlimits": [{"type": r.type, "soft": r.soft, "hard": r.hard} for r in adjustment.rlimits],
    }
    return {key: value for key, value in parts.items() if value}


def _hook_json(hook: Hook) -> Json:
    return {
        "stage": hook.stage,
        "path": hook.path,
        "args": list(hook.args),
        "env": list(hook.env),
        "timeout_s": hook.timeout_s,
    }


def _action_json(action: WarmAction) -> Json:
    if isinstance(action, WarmFiles):
        return {
            "kind": "files",
            "patterns": list(action.patterns),
            "residency": action.residency.value,
            "max_bytes": action.max_bytes,
            "max_files": action.max_files,
        }
    raise TypeError(f"no rendering for {type(action).__name__}")


def render_plan_text(plan: WarmupPlan) -> str:
    """What would be done, then why: ``+`` chosen, ``<`` cut to a limit, ``!`` ignored, ``-`` not done."""
    lines = ["nothing would be done"] if plan.is_empty else list(_what(plan))
    lines.append("why:")
    lines.extend(f"  {_MARKS[reason.kind]} {_reason(reason)}" for reason in plan.reasons)
    return "\n".join(_printable(line) for line in lines) + "\n"


def _what(plan: WarmupPlan) -> Iterable[str]:
    yield f"profile:  {plan.profile}" + (" (observe: measure only)" if plan.mode is Mode.OBSERVE else "")
    match plan.gate:
        case Gate.NONE:
            yield "gate:     none, the entrypoint starts at once and warming goes on beside it"
        case Gate.HOOK | Gate.START:
            yield f"gate:     {plan.gate.value}, delays the entrypoint by at most {render_duration(plan.hold_s)}"
    yield f"deadline: {render_duration(plan.deadline_s)}"
    yield f"on error: {plan.on_error.value}"
    for action in plan.actions:
        yield from _action_lines(action, plan)
    if plan.adjustment.is_empty:
        yield "runtime:  asked to change nothing"
    for key, value in plan.adjustment.annotations:
        yield f"runtime:  annotation {key}={value}"
    for mount in plan.adjustment.mounts:
        yield f"runtime:  mount {mount.source} at {mount.destination} ({','.join(mount.options)})"
    for hook in plan.adjustment.hooks:
        yield f"runtime:  {hook.stage} hook {hook.path} {' '.join(hook.args[1:])} (time-out {hook.timeout_s} s)"


def _action_lines(action: WarmAction, plan: WarmupPlan) -> Iterable[str]:
    if isinstance(action, WarmFiles):
        size = render_size(action.max_bytes)
        yield f"files:    at most {size} in {action.max_files} files, left {action.residency.value}"
        yield f"          and {render_size(plan.reserve_bytes)} below the container's memory limit kept free"
        for pattern in action.patterns:
            yield f"          {pattern}"


def _reason(reason: Reason) -> str:
    return f"{reason.text}  [{reason.code}]"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)
