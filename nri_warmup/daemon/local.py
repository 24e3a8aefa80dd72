"""The same pipeline without a container runtime: for the verbs ``exec`` (a command of ours) and ``warm``."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nri_warmup.config import default_config
from nri_warmup.daemon import paths
from nri_warmup.daemon.localcgroup import LocalCgroup
from nri_warmup.daemon.node import read_levels_of, read_memory_levels, read_node_state
from nri_warmup.daemon.warmup import Target, warm_target
from nri_warmup.errors import KernelError
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel import process
from nri_warmup.kernel.root import Root
from nri_warmup.model.lifecycle import Container, Pod, Runtime, pairs
from nri_warmup.model.node import MemoryLevel
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.plan import WarmupPlan
from nri_warmup.model.profile import Config, Gate, NodeLimits, Profile, Residency
from nri_warmup.policy.decide import decide
from nri_warmup.policy.memory import budget

_CLONE_NEWNS = 0x00020000
_MS_REC_SLAVE = 0x4000 | 0x80000


def exit_code(outcome: Outcome) -> int:
    """The exit code of a command whose result is this outcome."""
    match outcome.state:
        case OutcomeState.DONE | OutcomeState.OBSERVED:
            return 0
        case OutcomeState.PARTIAL | OutcomeState.OVER_BUDGET:
            return 3
        case OutcomeState.DEADLINE:
            return 124
        case _:
            return 1


async def warm_once(
    *,
    patterns: tuple[str, ...],
    pid: int,
    cgroup_dir: str,
    max_bytes: int | None,
    deadline_s: float,
    residency: Residency,
    measure_only: bool,
    on_progress: Callable[[Progress], None],
) -> Outcome:
    """Warm ``patterns`` once: as process ``pid`` sees them and charged to it, or on the host (pid 0)."""
    root = Root("/")
    node = read_node_state(root)
    procs, levels = _charged_to(root, pid, cgroup_dir)
    reserve_bytes = Profile(name="").reserve_bytes if levels else 0
    pidfd = process.pidfd_open(pid) if pid else None
    injector = Injector(lease_path=_lease())
    try:
        await injector.start()
        job = WarmJob(
            id="warm",
            pid=pid,
            patterns=patterns,
            residency=residency,
            max_bytes=max_bytes if max_bytes is not None else 1 << 62,
            max_files=1_000_000,
            budget_bytes=budget(levels, node, reserve_bytes, NodeLimits().reserve_bytes).budget_bytes,
            deadline_s=deadline_s,
            join_cgroup=bool(pid or procs) and not measure_only,
            cgroup_procs=procs,
            enter_namespaces=bool(pid),
            readahead_bytes=node.readahead_bytes,
            measure_only=measure_only,
        )
        return await injector.run(job, pidfd, on_progress)
    finally:
        if pidfd is not None:
            os.close(pidfd)
        await injector.close()


def _charged_to(root: Root, pid: int, cgroup_dir: str) -> tuple[tuple[str, ...], tuple[MemoryLevel, ...]]:
    """(cgroup.procs files to join, memory levels that bound it). Raises KernelError where there is no such cgroup."""
    if pid:
        return (), read_memory_levels(root, pid)
    if not cgroup_dir:
        return (), ()
    directory = os.path.abspath(cgroup_dir)
    procs = os.path.join(directory, "cgroup.procs")
    if not os.access(procs, os.W_OK):
        number = errno.EACCES if os.path.exists(procs) else errno.ENOENT
        raise KernelError(procs, number, "not a cgroup that we can join")
    return (procs,), read_levels_of(root, directory)


def _lease() -> str | None:
    """The host's list of files being warmed, where there is a place for it: one job a file at a time."""
    return paths.LEASE if os.access(os.path.dirname(paths.LEASE), os.W_OK) else None


def exec_config(path: str) -> Config:
    """The file named, else the host's own, else the built-in defaults."""
    if not path and not Path(paths.CONFIG).exists():
        return default_config()
    from nri_warmup.daemon.configfile import read_config  # brings in YAML

    return read_config(path or paths.CONFIG)


def exec_plan(
    config_path: str, *, labels: Mapping[str, str], annotations: Mapping[str, str], command: tuple[str, ...]
) -> WarmupPlan:
    """The decision for a command, as if it were a container of a pod with these labels and annotations."""
    pod = Pod(
        id="exec", name="exec", namespace="exec", labels=pairs(dict(labels)), annotations=pairs(dict(annotations))
    )
    container = Container(id="exec", pod_id="exec", name="main", args=command)
    # We hold the command ourselves: to the decision that is a hook of ours that runs already.
    node = replace(read_node_state(Root("/")), hook_usable=True, hook_running=True)
    return decide(pod, container, exec_config(config_path), Runtime(), node)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """With ``gate: hook`` the command begins only when its files are warm, or ``plan.hold_s`` is over."""

    command: tuple[str, ...]
    plan: WarmupPlan
    memory_limit_bytes: int | None = None
    on_outcome: Callable[[Outcome], None] = lambda outcome: None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalResult:
    exit_code: int
    outcome: Outcome | None


def run_local(run: LocalRun) -> LocalResult:
    """Run a command in a cgroup and mount namespace of its own, warming beside it. It forks: no threads before it."""
    group = LocalCgroup.make(run.memory_limit_bytes)
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        _become(run.command, group.procs, ready)
    os.close(ready)
    try:
        return asyncio.run(_supervise(run, pid, go))
    finally:
        group.remove()


def _become(command: tuple[str, ...], procs: tuple[str, ...], ready: int) -> None:
    """In the child: join, unshare, wait for the word, exec. Never returns."""
    try:
        for path in procs:
            with open(path, "w") as stream:
                stream.write("0")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC_SLAVE, None):
            number = ctypes.get_errno()
            print(f"nri-warmup exec: no mount namespace of its own: {os.strerror(number)}", file=sys.stderr)
        if os.read(ready, 1) != b"g":
            os._exit(1)
        os.close(ready)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"nri-warmup exec: {command[0]}: {error.strerror or error}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    except BaseException:
        os._exit(126)


async def _supervise(run: LocalRun, pid: int, go: int) -> LocalResult:
    loop = asyncio.get_running_loop()
    pidfd = os.pidfd_open(pid)
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(pidfd, _end, ended)
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _forward, pidfd, number)
    # A terminal sends SIGINT to the whole group, so to the command as well; sent to us alone it has to be passed on.
    if os.isatty(0):
        loop.add_signal_handler(signal.SIGINT, lambda: None)
    else:
        loop.add_signal_handler(signal.SIGINT, _forward, pidfd, signal.SIGINT)
    warm = loop.create_task(_warm(run, pid)) if not run.plan.is_empty else None
    if warm is not None and run.plan.gate is Gate.HOOK:
        held: set[asyncio.Future[Any]] = {warm, ended}
        await asyncio.wait(held, timeout=run.plan.hold_s, return_when=asyncio.FIRST_COMPLETED)
    with contextlib.suppress(BrokenPipeError):
        os.write(go, b"g")
    os.close(go)
    await ended
    loop.remove_reader(pidfd)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    outcome = None
    if warm is not None:
        if not warm.done():
            warm.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            outcome = await warm
    code = os.waitstatus_to_exitcode(status)
    return LocalResult(exit_code=code if code >= 0 else 128 - code, outcome=outcome)


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _forward(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


async def _warm(run: LocalRun, pid: int) -> Outcome:
    started = asyncio.get_running_loop().time()
    injector = Injector(lease_path=_lease())
    try:
        await injector.start()
        outcome = await warm_target(
            injector,
            Root("/"),
            Target(pid=pid, job_id="exec"),
            run.plan,
            deadline_s=run.plan.deadline_s,
            node_reserve_bytes=NodeLimits().reserve_bytes,
            on_progress=lambda progress: None,
            started_s=started,
        )
        run.on_outcome(outcome)
        return outcome
    except asyncio.CancelledError:
        await injector.cancel("exec")
        return Outcome(state=OutcomeState.CANCELLED, reason="the command ended first")
    finally:
        await injector.close()
