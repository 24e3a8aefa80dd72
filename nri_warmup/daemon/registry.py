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
from dataclasses import dataclass, field
from pathlib import Path

from nri_warmup.daemon import logs
from nri_warmup.model.lifecycle import Container, Pod
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.plan import WarmupPlan

_HISTORY = 200
_MAX_ENTRIES = 20_000


@dataclass(slots=True, kw_only=True)
class Entry:
    """One container we know. ``began_s`` is the monotonic time at which its window opened, None before."""

    pod: Pod
    container: Container
    plan: WarmupPlan
    state: OutcomeState | None = None
    late: bool = False
    began_s: float | None = None
    progress: Progress = field(default_factory=Progress)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the worker is inside the container."""
    outcome: Outcome | None = None
    task: asyncio.Task[Outcome] | None = None
    held_by_hook: bool = False
    """Our OCI hook holds its entrypoint now."""
    by_hook: bool = False
    """No runtime told us of it, only the hook; nor will one tell of its end."""
    created: bool = False
    """PostCreateContainer was seen: the runtime took our adjustment."""


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

    def find(self, prefix: str) -> list[Entry]:
        """Entries whose container id begins with ``prefix``, or whose ``pod/container`` name is it."""
        return [
            e
            for e in self._entries.values()
            if e.container.id.startswith(prefix) or prefix in (e.container.name, f"{e.pod.name}/{e.container.name}")
        ]

    def remove(self, container_id: str) -> Entry | None:
        entry = self._entries.pop(container_id, None)
        if entry is not None:
            pod_id = entry.container.pod_id or entry.pod.id
            siblings = self._pods.get(pod_id, set())
            siblings.discard(container_id)
            if not siblings:
                self._pods.pop(pod_id, None)
            self.history.append(entry)
        return entry

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
    """Ids of containers whose warm-up ended, on disk. Losing the file costs one needless check of residency."""

    def __init__(self, path: str | None) -> None:
        self._path = Path(path) if path else None
        self._ids: set[str] = set()
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._ids = set(self._path.read_text().split())

    def __contains__(self, container_id: object) -> bool:
        return container_id in self._ids

    def add(self, container_id: str) -> None:
        if container_id in self._ids:
            return
        self._ids.add(container_id)
        if self._path is not None:
            try:
                with self._path.open("a") as stream:
                    stream.write(container_id + "\n")
            except OSError as error:
                logs.warning("cannot note a finished warm-up", error=error)

    def retain(self, alive: Iterable[str]) -> None:
        """Forget containers that are gone (after a Synchronize), by writing the file anew."""
        kept = self._ids & set(alive)
        if kept == self._ids:
            return
        self._ids = kept
        if self._path is not None:
            temporary = self._path.with_suffix(".tmp")
            try:
                temporary.write_text("".join(f"{i}\n" for i in sorted(kept)))
                os.replace(temporary, self._path)
            except OSError as error:
                logs.warning("cannot rewrite the list of finished warm-ups", error=error)
