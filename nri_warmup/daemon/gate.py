"""Operation ``gate`` of the control socket: an OCI hook tells of a container about to start and waits to be let go.

    {"v":1,"op":"gate","id":ID,"state":{"pid":…,"bundle":…}}  ->  a progress line a second  ->  {"done":true,"exit":0}

``state`` is the runtime's own, as the hook got it; ``id``, where it is not empty, is the container that the hook was
injected for.

The process is created and in its cgroup, the mounts are made, and it has not pivoted into its rootfs yet: the worker
enters its mount namespace and changes its root to the rootfs there. The container is held until all is warm, at most
``hold_s``; what is left then warms on beside the entrypoint. ``exit`` is 1 where the profile says ``on_error: closed``
and the warm-up failed, and wherever we cannot tell: a hook without --closed does not care.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

from nri_warmup import oci
from nri_warmup.daemon import logs
from nri_warmup.daemon.control import Message
from nri_warmup.daemon.pipeline import Pipeline
from nri_warmup.daemon.registry import Entry
from nri_warmup.errors import KernelError, RemoteProtocolError, WarmupError
from nri_warmup.kernel import cgroup, process
from nri_warmup.kernel.namespaces import read_mount_points
from nri_warmup.kernel.root import Root
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.model.profile import Gate, OnError
from nri_warmup.observe.metrics import Registry as Metrics

_PROGRESS_S = 1.0
_ENTER_S = 1.0
"""Held at least until the worker is inside, at most so long: it need not look for a rootfs that moves meanwhile."""
_MAX_CONFIG_BYTES = 8 << 20
_GOOD = frozenset({OutcomeState.DONE, OutcomeState.OBSERVED, OutcomeState.SKIPPED})
"""Ends of a warm-up that do not fail a container whose profile says ``on_error: closed``."""


class GateRefused(WarmupError):
    """The container is let go without a warm-up by this hook. ``result`` is a word for the metric."""

    def __init__(self, result: str, text: str) -> None:
        super().__init__(text)
        self.result = result


def find_rootfs(root: Root, state: oci.OciState, config: object) -> str:
    """The rootfs as a mount point in the process's own mount namespace, not pivoted into yet. Raises GateRefused.

    config.json says it, or crun's own ``root``; where the bundle is broken (crun#2025), the one mount with a /proc of
    its own that only this process sees.
    """
    theirs = read_mount_points(root, state.pid)
    declared = oci.rootfs_path(state, config)
    for candidate in (os.path.normpath(declared), os.path.realpath(declared)) if declared else ():
        if candidate in theirs and candidate != "/":
            return candidate
    only_theirs = theirs - read_mount_points(root, os.getpid())
    found = sorted((m.removesuffix("/proc") for m in only_theirs if m.endswith("/proc") and m != "/proc"), key=len)
    if found and found[0] in theirs:
        return found[0]
    raise GateRefused("no-rootfs", "the container's rootfs is not mounted where the runtime says")


class GateKeeper:
    """Serves hooks. ``operation`` is what the control server calls."""

    def __init__(self, pipeline: Pipeline, root: Root, metrics: Metrics) -> None:
        self._pipeline = pipeline
        self._root = root
        self._metrics = metrics

    async def operation(self, message: Message) -> AsyncIterator[Message]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        result, exit_code, reason = "hook-gone", 1, ""
        try:
            entry = self._open(message)
            async for progress in self._hold(entry, began_s + _hold_s(entry)):
                yield progress
            result, exit_code, reason = _verdict(entry)
        except GateRefused as refusal:
            result, exit_code, reason = refusal.result, 1, str(refusal)
            logs.info("a hook was let go without a warm-up", container=str(message.get("id"))[:12], reason=reason)
        except Exception as error:
            result, exit_code, reason = "failed", 1, f"{type(error).__name__}: {error}"
            logs.LOG.exception("gate failed")
        finally:
            self._metrics.inc("nri_warmup_gates_total", result=result)
            self._metrics.observe("nri_warmup_gate_hold_seconds", loop.time() - began_s)
        yield {"done": True, "exit": exit_code, "reason": reason}

    def _open(self, message: Message) -> Entry:
        """The container's entry with its warm-up begun (or begun before). Raises GateRefused."""
        given, container_id = message.get("state"), message.get("id")
        try:
            if isinstance(given, dict) and container_id:
                given = {**given, "id": container_id}
            state = oci.parse_state(given)
        except RemoteProtocolError as error:
            raise GateRefused("refused", str(error)) from error
        if not state.pid:
            raise GateRefused("refused", "no pid of the container on the host")
        try:
            pidfd = process.pidfd_open(state.pid)
        except KernelError as error:
            raise GateRefused("gone", "the container's process is gone") from error
        try:
            return self._open_process(state, pidfd)
        except KernelError as error:
            if not process.is_alive(pidfd):
                raise GateRefused("gone", "the container's process is gone") from error
            raise GateRefused("failed", str(error)) from error
        finally:
            os.close(pidfd)

    def _open_process(self, state: oci.OciState, pidfd: int) -> Entry:
        if not cgroup.belongs_to(cgroup.read_memberships(self._root, state.pid), state.id):
            raise GateRefused("refused", f"process {state.pid} is in no cgroup of this container")
        config = self._read_config(state)
        entry = self._pipeline.registry.get(state.id)
        if entry is None:
            if config is None:
                raise GateRefused("unknown", "no runtime told of this container and its bundle cannot be read")
            event = oci.event(state, config)
            assert event.container is not None
            entry = self._pipeline.plan_in_hook(event.pod, event.container)
            if not entry.plan.is_empty:
                self._watch_end(entry, pidfd)
        if not entry.plan.is_empty and entry.began_s is None:
            rootfs = find_rootfs(self._root, state, config)
            if not process.is_alive(pidfd):
                raise GateRefused("gone", "the container's process is gone")
            self._pipeline.begin_in_hook(entry, state.pid, rootfs)
        return entry

    def _read_config(self, state: oci.OciState) -> object:
        """config.json by way of the process's own root, the host's until it pivots; None where there is none."""
        if not state.bundle:
            return None
        path = f"proc/{state.pid}/root{state.bundle}/config.json"
        try:
            return json.loads(self._root.read_bytes(path, _MAX_CONFIG_BYTES))
        except (KernelError, ValueError, RecursionError):
            return None

    def _watch_end(self, entry: Entry, pidfd: int) -> None:
        """No runtime will tell of this container's end: its process does."""
        loop = asyncio.get_running_loop()
        own = os.dup(pidfd)

        def ended() -> None:
            loop.remove_reader(own)
            os.close(own)
            self._pipeline.gone(entry)

        loop.add_reader(own, ended)

    async def _hold(self, entry: Entry, until_s: float) -> AsyncIterator[Message]:
        """Until the warm-up has ended or the time is over; a line now and then shows the hook that we live."""
        loop = asyncio.get_running_loop()
        entry.held_by_hook = True
        try:
            if entry.task is not None:
                await _entered(entry, entry.task)
            while entry.task is not None and not entry.task.done() and (left_s := until_s - loop.time()) > 0:
                await asyncio.wait({entry.task}, timeout=min(left_s, _PROGRESS_S))
                if not entry.task.done():
                    progress = entry.progress
                    yield {"resident_bytes": progress.resident_bytes, "wanted_bytes": progress.wanted_bytes}
        finally:
            entry.held_by_hook = False


async def _entered(entry: Entry, task: asyncio.Task[Outcome]) -> None:
    inside = asyncio.ensure_future(entry.entered.wait())
    try:
        await asyncio.wait({task, inside}, timeout=_ENTER_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        inside.cancel()


def _hold_s(entry: Entry) -> float:
    return entry.plan.hold_s if entry.plan.gate is Gate.HOOK else 0.0


def _verdict(entry: Entry) -> tuple[str, int, str]:
    """(word for the metric, exit code, reason) once the hold is over."""
    if entry.plan.is_empty:
        return "no-plan", 0, "; ".join(map(str, entry.plan.reasons))
    outcome = entry.outcome
    if outcome is None:
        return "beside", 0, "warms on beside the entrypoint"
    if outcome.state in _GOOD or entry.plan.on_error is OnError.OPEN:
        return "held", 0, outcome.state.value
    return "closed", 1, f"{outcome.state.value}: {outcome.reason or 'the warm-up did not reach everything'}"
