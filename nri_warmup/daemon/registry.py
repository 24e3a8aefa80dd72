"""Which containers we have a plan for, and how far each is: the one place where the daemon's memory of them lives.

Bounded: entries go with their container, ended ones are kept in a short history for ``status``. What was warmed is
also kept on disk, an id a line, so that a restarted daemon does not read for a container twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nri_warmup.daemon import logs
from nri_warmup.model.lifecycle import Container, Pod
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.plan import WarmupPlan
from nri_warmup.model.warmset import FileState

_HISTORY = 200
_MAX_ENTRIES = 20_000
_SLACK_LINES = 1024
_STATES = frozenset(state.value for state in OutcomeState)
_KEPT_FILES = 20
_KEPT_CHARACTERS = 256


def bounded(outcome: Outcome) -> Outcome:
    """An outcome as it is kept: what went wrong first, texts cut. A tenant's tree decides how long the whole one is."""
    worst = [file for file in outcome.files if file.state not in (FileState.WARMED, FileState.EMPTY)]
    kept = (worst + [file for file in outcome.files if file.state is FileState.WARMED])[:_KEPT_FILES]
    files = tuple(replace(f, path=_cut(f.path), detail=_cut(f.detail)) for f in kept)
    return replace(outcome, files=files, reason=_cut(outcome.reason))


def _cut(text: str) -> str:
    return text if len(text) <= _KEPT_CHARACTERS else text[: _KEPT_CHARACTERS - 1] + "…"


@dataclass(slots=True, kw_only=True)
class Entry:
    """One container we know. ``began_s`` is the monotonic time at which its window opened, None before."""

    pod: Pod
    container: Container
    plan: WarmupPlan
    state: OutcomeState | None = None
    late: bool = False
    began_s: float | None = None
    decided_in_s: float | None = None
    """How long CreateContainer waited for the decision; None where there was no such event."""
    progress: Progress = field(default_factory=Progress)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the worker is inside the container."""
    outcome: Outcome | None = None
    task: asyncio.Task[Outcome] | None = None
    held_by_hook: bool = False
    """Our OCI hook holds its entrypoint now."""
    program: str = ""
    """How the operator's warm-up program ended, as its launcher says."""
    by_hook: bool = False
    """No runtime told us of it, only the hook; nor will one tell of its end."""
    created: bool = False
    """PostCreateContainer was seen: the runtime took our adjustment."""


def slim(entry: Entry) -> None:
    """Keep what is needed once the plan is made; the rest is as large as a tenant likes."""
    entry.pod = replace(entry.pod, labels=(), annotations=())
    entry.container = replace(entry.container, labels=(), annotations=(), args=(), env=(), mounts=())


class Registry:
    """Entries by container id, and an index of the containers of each pod."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._pods: dict[str, set[str]] = {}
        self.history: deque[Entry] = deque(maxlen=_HISTORY)

    def add(self, entry: Entry) -> None:
        if len(self._entries) >= _MAX_ENTRIES and entry.container.id not in self._entries:
            self.remove(next(iter(self._entries)))
        self._entries[entry.container.id] = entry
        self._pods.setdefault(entry.container.pod_id or entry.pod.id, set()).add(entry.container.id)

    def get(self, container_id: str) -> Entry | None:
        return self._entries.get(container_id)

    def remove(self, container_id: str) -> Entry | None:
        entry = self._entries.pop(container_id, None)
        if entry is not None:
            pod_id = entry.container.pod_id or entry.pod.id
            siblings = self._pods.get(pod_id, set())
            siblings.discard(container_id)
            if not siblings:
                self._pods.pop(pod_id, None)
            self.note(entry)
        return entry

    def note(self, entry: Entry) -> None:
        """Into the history, which ``status`` shows."""
        slim(entry)
        self.history.append(entry)

    def of_pod(self, pod_id: str) -> list[Entry]:
        return [self._entries[i] for i in tuple(self._pods.get(pod_id, ())) if i in self._entries]

    def has_pod(self, pod_id: str) -> bool:
        return pod_id in self._pods

    def __contains__(self, container_id: object) -> bool:
        return container_id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))


class WarmedLog:
    """How warm-ups of containers ended that need no second one, on disk: a line ``ID STATE`` each.

    Losing the file costs one needless check of residency.
    """

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._states: dict[str, OutcomeState] = {}
        self._lines = 0
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                for line in self._path.read_text().splitlines():
                    self._lines += 1
                    container_id, _, state = line.partition(" ")
                    if state in _STATES:
                        self._states[container_id] = OutcomeState(state)

    def state(self, container_id: str) -> OutcomeState | None:
        return self._states.get(container_id)

    def add(self, container_id: str, state: OutcomeState) -> None:
        if self._states.get(container_id) is state:
            return
        self._states[container_id] = state
        if self._path is not None:
            try:
                with self._path.open("a") as stream:
                    stream.write(f"{container_id} {state.value}\n")
                self._lines += 1
            except OSError as error:
                logs.warning("cannot note a finished warm-up", error=error)

    def discard(self, container_id: str) -> None:
        """The container is gone. The file is written anew when most of it is about such."""
        self._states.pop(container_id, None)
        if self._lines > 2 * len(self._states) + _SLACK_LINES:
            self._rewrite()

    def retain(self, alive: Iterable[str]) -> None:
        """Forget containers that are gone (after a Synchronize)."""
        kept = set(alive)
        if not kept.issuperset(self._states):
            self._states = {i: state for i, state in self._states.items() if i in kept}
            self._rewrite()

    def _rewrite(self) -> None:
        self._lines = len(self._states)
        if self._path is not None:
            temporary = self._path.with_suffix(".tmp")
            try:
                temporary.write_text("".join(f"{i} {state.value}\n" for i, state in sorted(self._states.items())))
                os.replace(temporary, self._path)
            except OSError as error:
                logs.warning("cannot rewrite the list of finished warm-ups", error=error)
