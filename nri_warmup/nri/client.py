"""The daemon's side of NRI: speaks model values, and decodes only what may concern a container we warm.

Built on the stub: a plugin whose ``raw_event`` answers most events from their bytes alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, Protocol

from nri_warmup.model.lifecycle import Container, EventKind, LifecycleEvent, Pod, Runtime
from nri_warmup.model.plan import Adjustment
from nri_warmup.nri.dispatch import MORE
from nri_warmup.nri.events import METHODS, Event
from nri_warmup.nri.identity import DEFAULT_SOCKET, Identity
from nri_warmup.nri.plugin import Plugin
from nri_warmup.nri.scan import Interest, SyncSieve, event_number, id_inside, matches
from nri_warmup.nri.stub import Backoff, Stub
from nri_warmup.nri.versions import RuntimeInfo

LOG = logging.getLogger("nri_warmup.nri")

KINDS = {event: EventKind[event.name] for event in Event if event.name in EventKind.__members__}

DEFAULT_EVENTS = frozenset(
    {
        EventKind.CREATE_CONTAINER,
        EventKind.POST_CREATE_CONTAINER,
        EventKind.START_CONTAINER,
        EventKind.STOP_CONTAINER,
        EventKind.REMOVE_CONTAINER,
        EventKind.STOP_POD_SANDBOX,
        EventKind.REMOVE_POD_SANDBOX,
    }
)

_POD_KINDS = frozenset({EventKind.RUN_POD_SANDBOX, EventKind.STOP_POD_SANDBOX, EventKind.REMOVE_POD_SANDBOX})
# Events by which a container or pod that we have not heard of can come to us; later ones only matter if it is tracked.
_OPENING = frozenset({EventKind.RUN_POD_SANDBOX, EventKind.CREATE_CONTAINER, EventKind.START_CONTAINER})

_TRIM_ABOVE = 1 << 20
_NO_RUNTIME = Runtime()


class Handler(Protocol):
    """What the daemon does with what the runtime says. Called on the event loop; must not block."""

    def interest(self) -> Interest:
        """A disjunction of conjunctions of byte strings: an event that contains none of them whole is not decoded."""

    def is_tracked(self, container_id: str) -> bool:
        """Whether later events of this container are to be delivered."""

    def is_tracked_pod(self, pod_id: str) -> bool: ...

    def on_config(self, text: str) -> None:
        """The configuration that the runtime has for a launched plugin, "" otherwise."""

    def on_connected(self, runtime: Runtime) -> None: ...

    def on_disconnected(self, reason: str) -> None: ...

    def on_synchronize(self, containers: Sequence[tuple[Pod, Container]], totals: tuple[int, int]) -> None:
        """What exists and may match; after the reply, before any other event. ``totals``: all pods, all containers."""

    def on_create(self, event: LifecycleEvent) -> Adjustment: ...

    def on_event(self, event: LifecycleEvent) -> Awaitable[Any] | None:
        """None lets the runtime go on at once; an awaitable holds it until done or until shortly before its timeout.

        Of a tracked container or pod the event carries id, state and pid; of one first heard of now, everything.
        """

    def on_skipped(self, kind: EventKind) -> None:
        """An event was answered without decoding it."""

    def on_failed(self, kind: EventKind) -> None:
        """Something of ours raised for an event; the runtime was answered all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionStatus:
    """A snapshot. ``since`` is the wall clock of the last change of state, in seconds."""

    state: Literal["connecting", "registered", "disconnected"] = "connecting"
    runtime: Runtime = _NO_RUNTIME
    since: float = 0.0
    last_error: str = ""
    disconnects: int = 0
    handler_errors: int = 0
    events: tuple[tuple[EventKind, int], ...] = ()


class NriClient:
    """Keeps the daemon connected to the runtime and gives it what concerns it."""

    def __init__(
        self,
        handler: Handler,
        *,
        socket_path: str = DEFAULT_SOCKET,
        name: str = "nri-warmup",
        index: str = "90",
        launched_fd: int | None = None,
        events: frozenset[EventKind] = DEFAULT_EVENTS,
        margin_s: float = 0.25,
        backoff: Backoff | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        identity = Identity(name=name, index=index, launched_fd=launched_fd)
        self._plugin = _Bridge(handler, events, launched=launched_fd is not None, wall_clock=wall_clock)
        self._stub = Stub(self._plugin, identity, socket_path=socket_path, margin_s=margin_s, backoff=backoff)

    @property
    def status(self) -> ConnectionStatus:
        return replace(self._plugin.status, events=tuple(self._plugin.counts.items()))

    async def run(self) -> None:
        """Serve until cancelled. A launched one returns when the runtime is gone: it cannot connect again."""
        reason = await self._stub.run()
        LOG.warning("%s", reason)


class _Bridge(Plugin):
    """The plugin behind NriClient."""

    def __init__(
        self,
        handler: Handler,
        events: frozenset[EventKind],
        *,
        launched: bool,
        wall_clock: Callable[[], float],
    ) -> None:
        self._handler = handler
        self._events = frozenset(event for event, kind in KINDS.items() if kind in events and event)
        self._launched = launched
        self._wall_clock = wall_clock
        self._sieve: SyncSieve | None = None
        self._nri_version = RuntimeInfo().nri_version
        self.counts: dict[EventKind, int] = {}
        self.status = ConnectionStatus(since=wall_clock())

    # -- the connection --------------------------------------------------------------------------------------------

    def events(self) -> frozenset[Event]:
        return self._events

    def configure(self, config: str, runtime: RuntimeInfo) -> None:
        self._sieve = None
        self._nri_version = runtime.nri_version
        self._handler.on_config(config)

    def connected(self, runtime: RuntimeInfo) -> None:
        value = Runtime(
            name=runtime.name,
            version=runtime.version,
            nri_version=runtime.nri_version[:2],
            request_timeout_s=runtime.request_timeout_s,
            pid=self.runtime_pid,
        )
        # Launched plugins are not synchronized before 0.7: for them this is all there is to wait for.
        ready = self._launched and runtime.nri_version < (0, 7, 0)
        self._set_status(runtime=value, state="registered" if ready else "connecting")
        self._handler.on_connected(value)

    def disconnected(self, reason: str) -> None:
        self._set_status(state="disconnected", last_error=reason, disconnects=self.status.disconnects + 1)
        self._handler.on_disconnected(reason)

    def synchronized(self) -> None:
        self._set_status(state="registered")
        sieve, self._sieve = self._sieve, None
        if sieve is None:
            return
        self._count(EventKind.SYNCHRONIZE)
        size, totals = sieve.size, sieve.totals
        interest = self._handler.interest()
        found = sieve.sift(interest)
        del sieve
        listed = []
        for pod, container in found:
            try:
                listed.append(_translate().parse_listed(pod, container))
            except Exception:
                self._handler_failed(EventKind.SYNCHRONIZE)
        del found
        self._handler.on_synchronize(listed, totals)
        if size > _TRIM_ABOVE:
            asyncio.get_running_loop().call_soon(trim_memory)
        if interest:
            _translate()  # the first event that matters shall not wait for the import

    def _set_status(self, **changes: Any) -> None:
        self.status = replace(self.status, since=self._wall_clock(), **changes)

    # -- events ----------------------------------------------------------------------------------------------------

    def raw_event(self, method: str, payload: bytes) -> bytes | Awaitable[bytes] | None:
        """The fast path: b"" for whatever cannot concern us."""
        if method == "CreateContainer":
            if matches(self._handler.interest(), payload):
                return self._create(payload)
            return self._skip(EventKind.CREATE_CONTAINER)
        if method == "StateChange":
            number = event_number(payload)
            kind = _KIND_BY_NUMBER.get(number)
            pod_field = 2
        elif method == "Synchronize":
            return self._add_part(payload)
        else:
            event = METHODS.get(method)
            kind = KINDS.get(event) if event is not None else None
            pod_field = 1
        if kind is None:
            return None
        if kind in _POD_KINDS:
            wanted = self._handler.is_tracked_pod(id_inside(payload, pod_field))
        else:
            wanted = self._handler.is_tracked(id_inside(payload, pod_field + 1))
        if wanted or (kind in _OPENING and matches(self._handler.interest(), payload)):
            return self._deliver(kind, method, payload, known=wanted)
        return self._skip(kind)

    def _skip(self, kind: EventKind) -> bytes:
        self._count(kind)
        self._handler.on_skipped(kind)
        return b""

    def _count(self, kind: EventKind) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _add_part(self, payload: bytes) -> bytes:
        if self._sieve is None:
            self._sieve = SyncSieve()
        return MORE if self._sieve.add(payload) else b""

    def _create(self, payload: bytes) -> bytes:
        self._count(EventKind.CREATE_CONTAINER)
        translate = _translate()
        try:
            event = translate.parse_event(EventKind.CREATE_CONTAINER, "CreateContainer", payload)
            reply: bytes = translate.render_create_reply(self._handler.on_create(event), self._nri_version)
        except Exception:
            self._handler_failed(EventKind.CREATE_CONTAINER)
            return b""
        return reply

    def _deliver(self, kind: EventKind, method: str, payload: bytes, *, known: bool) -> bytes | Awaitable[bytes]:
        self._count(kind)
        try:
            held = self._handler.on_event(_translate().parse_event(kind, method, payload, known=known))
        except Exception:
            self._handler_failed(kind)
            return b""
        return b"" if held is None else self._hold(kind, held)

    async def _hold(self, kind: EventKind, held: Awaitable[Any]) -> bytes:
        try:
            await held
        except Exception:
            self._handler_failed(kind)
        return b""

    def _handler_failed(self, kind: EventKind) -> None:
        self.status = replace(self.status, handler_errors=self.status.handler_errors + 1)
        self._handler.on_failed(kind)
        LOG.exception("%s failed here; the runtime goes on", kind.value)


_KIND_BY_NUMBER = {int(event): kind for event, kind in KINDS.items() if event}


def _translate() -> ModuleType:
    """Loads protobuf on first use: a node where nothing is labelled never needs it."""
    from nri_warmup.nri import translate

    return translate


def trim_memory() -> None:
    """Give back what a large Synchronize has left in malloc's arenas; nothing where the C library has no such call."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:
        pass
