"""From a request's bytes to a plugin's method, and from what it returns to the reply's bytes.

Owns decoding, the two forms of lifecycle event, and the accumulation of Synchronize's parts. Not deadlines, not the
wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.nri.adjustment import dedupe_updates, make_safe, report
from nri_warmup.nri.events import METHODS, POD_EVENTS, Event
from nri_warmup.nri.plugin import Plugin
from nri_warmup.nri.versions import RuntimeInfo
from nri_warmup.ttrpc.wire import VARINT, fields

if TYPE_CHECKING:
    from nri_warmup.nri._pb import nri_pb2 as pb

MORE = b"\x10\x01"
"""A SynchronizeResponse that asks for the next part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A decoded event on its way to the plugin: call ``Dispatcher.invoke`` with it."""

    event: Event
    message: Any


class UnknownMethod(Exception):
    """The runtime calls something that no version of NRI we know has: answered with Unimplemented."""


def event_of(method: str, payload: bytes) -> Event | None:
    """Which event a request brings; None for a StateChange with a number that we do not know. Raises UnknownMethod."""
    if method != "StateChange":
        try:
            return METHODS[method]
        except KeyError:
            raise UnknownMethod(method) from None
    number = 0
    for field, kind, value, _ in fields(payload, 0, len(payload)):
        if field == 1 and kind == VARINT:
            number = value
            break
    return Event(number) if 0 < number <= max(Event) else None


def _messages() -> Any:
    """The generated module, loaded with the first event that has to be decoded."""
    from nri_warmup.nri._pb import nri_pb2

    return nri_pb2


class Dispatcher:
    """Speaks for one plugin on one connection."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._handled = frozenset(event for event in Event if plugin.handles(event))
        self._sync: pb.SynchronizeRequest | None = None
        self.runtime = RuntimeInfo()

    def prepare(self, event: Event, method: str, payload: bytes) -> Prepared | bytes:
        """Decode what has a handler. Bytes are a reply that needs none. Raises RemoteProtocolError."""
        if event is Event.SYNCHRONIZE:
            return self._collect(payload)
        if event not in self._handled:
            return b""
        name = "StateChangeEvent" if method == "StateChange" else f"{method}Request"
        return Prepared(event=event, message=_decode(getattr(_messages(), name), payload))

    def invoke(self, prepared: Prepared) -> Any:
        """Call the plugin's method; the result is the handler's, perhaps an awaitable."""
        event, message = prepared.event, prepared.message
        if event is Event.SYNCHRONIZE:
            return self._plugin.synchronize(message.pods, message.containers)
        if event is Event.VALIDATE_CONTAINER_ADJUSTMENT:
            return self._plugin.validate_container_adjustment(message)
        if event is Event.UPDATE_CONTAINER:
            return self._plugin.update_container(message.pod, message.container, message.linux_resources)
        if event is Event.UPDATE_POD_SANDBOX:
            overhead, resources = message.overhead_linux_resources, message.linux_resources
            return self._plugin.update_pod_sandbox(message.pod, overhead, resources)
        handler = getattr(self._plugin, event.handler_name)
        return handler(message.pod) if event in POD_EVENTS else handler(message.pod, message.container)

    def render(self, event: Event, result: Any) -> bytes:
        """The reply's payload for what a handler returned. TypeError for what none should."""
        if result is None:
            return b""
        pb = _messages()
        if event is Event.CREATE_CONTAINER:
            adjust, updates = result if isinstance(result, tuple) else (result, ())
            if not isinstance(adjust, pb.ContainerAdjustment):
                raise TypeError(f"create_container returned {type(adjust).__name__}, not a ContainerAdjustment")
            make_safe(adjust, self.runtime.nri_version)
            reply = pb.CreateContainerResponse(update=self._updates(updates))
            if adjust.ByteSize():
                reply.adjust.CopyFrom(adjust)
        elif event is Event.UPDATE_CONTAINER:
            reply = pb.UpdateContainerResponse(update=self._updates(result))
        elif event is Event.STOP_CONTAINER:
            reply = pb.StopContainerResponse(update=self._updates(result))
        elif event is Event.SYNCHRONIZE:
            reply = pb.SynchronizeResponse(update=self._updates(result))
        elif event is Event.VALIDATE_CONTAINER_ADJUSTMENT:
            reply = pb.ValidateContainerAdjustmentResponse(reject=True, reason=str(result))
        else:
            raise TypeError(f"{event.handler_name} returned {type(result).__name__}; the event's reply holds nothing")
        return bytes(reply.SerializeToString())

    def _collect(self, payload: bytes) -> Prepared | bytes:
        # Parsing into the same message appends, which is what the parts of a list want.
        part = _messages().SynchronizeRequest() if self._sync is None else self._sync
        self._sync = None
        part.more = False
        _merge(part, payload)
        if part.more:
            self._sync = part
            return MORE
        return Prepared(event=Event.SYNCHRONIZE, message=part)

    def _updates(self, updates: Sequence[Any]) -> list[Any]:
        kept, dropped = dedupe_updates(updates)
        report("updates", dropped, [])
        return kept


def _decode(message_type: Any, payload: bytes) -> Any:
    message = message_type()
    _merge(message, payload)
    return message


def _merge(message: Any, payload: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        message.MergeFromString(payload)
    except DecodeError as error:
        raise RemoteProtocolError(f"{type(message).__name__}: {error}") from None
