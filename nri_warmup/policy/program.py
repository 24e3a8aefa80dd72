"""The operator's warm-up program: how it comes into the container and runs there. Pure.

As a ``startContainer`` hook, so that the runtime gives it the container's own user, capabilities and seccomp filter: we
never run anything of a container's ourselves. Program and launcher come in on read-only bind mounts of host files. What
the runtime could refuse is not asked for: a file that is not there would fail the container.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nri_warmup.model.lifecycle import Mount
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import Hook, Reason, ReasonKind
from nri_warmup.model.profile import ExecProgram, Mode, Profile
from nri_warmup.policy.gate import HOOK_GRACE_S, MAX_HOOK_S
from nri_warmup.units import render_duration, render_id_list

INSIDE = "/.nri-warmup"
"""Where it is all mounted; an empty directory of that name stays in the container's own layer."""
LAUNCHER = f"{INSIDE}/launcher"
PROGRAM = f"{INSIDE}/program"
LOG = f"{INSIDE}/log"
LOG_SOCKET = "log.sock"
STAGE = "startContainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramChoice:
    mounts: tuple[Mount, ...]
    hook: Hook


def choose_program(profile: Profile, node: NodeState, held_s: float, reasons: list[Reason]) -> ProgramChoice | None:
    """``held_s`` is what a gate may have taken already of the time that kubelet waits."""
    program = profile.exec
    if program is None:
        return None
    if profile.mode is Mode.OBSERVE:
        text = f"mode observe changes nothing: {program.path} is not run"
        _add(reasons, ReasonKind.SKIPPED, "exec-observe", text)
        return None
    if why := _unusable(program, node):
        text = f"warm-up program {program.path} is not run: {why}"
        _add(reasons, ReasonKind.SKIPPED, "exec-unusable", text)
        return None
    timeout_s, longest_s = program.timeout_s, max(1.0, MAX_HOOK_S - held_s)
    if timeout_s > longest_s:
        ceiling = render_duration(longest_s)
        text = f"exec.timeout {render_duration(timeout_s)} is past what kubelet waits; {ceiling} instead"
        _add(reasons, ReasonKind.CUT, "exec-cut", text)
        timeout_s = longest_s
    text = f"{program.path} runs in the container before its entrypoint, at most {render_duration(timeout_s)}"
    _add(reasons, ReasonKind.CHOSEN, "exec", text)
    return ProgramChoice(mounts=_mounts(program, node), hook=_hook(program, timeout_s))


def _unusable(program: ExecProgram, node: NodeState) -> str:
    if node.hook_running:
        return "only a runtime with NRI can mount it into a container"
    if node.exec_reason or not node.exec_launcher:
        return node.exec_reason or "no path of its launcher is known"
    missing = [path for path in (program.path, program.directory) if path in node.exec_missing]
    return f"{missing[0]} is not on this host, or cannot be run" if missing else ""


def _mounts(program: ExecProgram, node: NodeState) -> tuple[Mount, ...]:
    source, destination = program.directory or program.path, PROGRAM
    if not program.directory:
        destination = f"{PROGRAM}/{_base(program.path)}"
    pairs = ((node.exec_launcher, LAUNCHER), (source, destination), (node.exec_log_dir, LOG))
    options = ("bind", "ro", "nosuid", "nodev", "rprivate")
    return tuple(Mount(source=s, destination=d, type="bind", options=options) for s, d in pairs if s)


def _hook(program: ExecProgram, timeout_s: float) -> Hook:
    inside = _base(program.path)
    if program.directory:
        inside = program.path.removeprefix(program.directory.rstrip("/")).lstrip("/")
    args = (
        "nri-warmup-exec",
        *("--timeout-ms", str(int(timeout_s * 1000))),
        *("--log", f"{LOG}/{LOG_SOCKET}"),
        *(("--cpus", render_id_list(program.cpus)) if program.cpus else ()),
        *(("--nodes", render_id_list(program.nodes)) if program.nodes else ()),
        *("--", f"{PROGRAM}/{inside}", *program.args),
    )
    # Without an environment of its own the hook gets the container's, as its entrypoint does.
    return Hook(stage=STAGE, path=LAUNCHER, args=args, timeout_s=ceil(timeout_s) + HOOK_GRACE_S)


def _add(reasons: list[Reason], kind: ReasonKind, code: str, text: str) -> None:
    reasons.append(Reason(kind=kind, code=code, text=text))


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]
