"""One NRI connection without its socket: bytes in, events out; replies and calls in, bytes out.

Owns who serves which mux connection, stream ids and what is answered without asking anybody. Not what methods mean.

    connection = Connection()
    for event in connection.receive_data(data): ...
    data = connection.reply(event.stream, payload)
"""

from __future__ import annotations

from dataclasses import dataclass

from nri_warmup.errors import LocalProtocolError, RemoteProtocolError
from nri_warmup.ttrpc.envelope import (
    Call,
    Code,
    Status,
    parse_request,
    parse_response,
    render_error,
    render_request,
    render_response,
)
from nri_warmup.ttrpc.frames import (
    MAX_RECEIVE,
    MAX_SEND,
    REQUEST,
    RESPONSE,
    FrameReader,
    MessageReader,
    render_message,
)
from nri_warmup.ttrpc.wire import Buffer

PLUGIN_CONN = 1
"""Mux connection on which the plugin serves and the runtime calls."""
RUNTIME_CONN = 2
"""Mux connection on which the runtime serves and the plugin calls."""

_MAX_STREAM = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """The other side calls. Answer with ``reply`` or ``reply_error`` for this ``stream``, in any order."""

    stream: int
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """The answer to a call of ours. ``status.code`` 0 is success."""

    stream: int
    status: Status
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MustSend:
    """The protocol itself answers (a bad stream id, a request above our cap): write ``data``."""

    data: bytes
    reason: str


Event = RequestReceived | ResponseReceived | MustSend


class Connection:
    """A plugin's end by default; ``serves=RUNTIME_CONN, calls=PLUGIN_CONN`` makes a runtime's.

    After a RemoteProtocolError the connection is of no more use and says so by LocalProtocolError.
    """

    def __init__(self, *, serves: int = PLUGIN_CONN, calls: int = RUNTIME_CONN, max_receive: int = MAX_RECEIVE) -> None:
        self._serves = serves
        self._calls = calls
        self._frames = FrameReader()
        self._requests = MessageReader(max_receive)
        self._responses = MessageReader(max_receive)
        self._open: set[int] = set()
        self._waiting: set[int] = set()
        self._last_stream = 0
        self._next_stream = 1
        self._failed = False

    def receive_data(self, data: bytes) -> list[Event]:
        """What happened in these bytes, in order. Raises RemoteProtocolError where they make no sense."""
        if self._failed:
            raise LocalProtocolError("the connection has failed already")
        events: list[Event] = []
        try:
            for conn, piece in self._frames.feed(data):
                if conn == self._serves:
                    for stream, kind, body in self._requests.feed(piece):
                        self._request_message(stream, kind, body, events)
                elif conn == self._calls:
                    for stream, kind, body in self._responses.feed(piece):
                        self._response_message(stream, kind, body, events)
                # Other connection ids are dropped, as the runtime's own library does.
        except RemoteProtocolError:
            self._failed = True
            raise
        return events

    def receive_eof(self) -> None:
        """The stream ended. Raises RemoteProtocolError if that was inside a frame or message."""
        parts = (self._frames, self._requests, self._responses)
        if not self._failed and not all(part.at_boundary for part in parts):
            self._failed = True
            raise RemoteProtocolError("the connection ended in the middle of a message")
        self._failed = True

    def request(self, service: str, method: str, payload: bytes = b"", timeout_ns: int = 0) -> tuple[int, bytes]:
        """Call the other side: the stream id its answer will carry, and the bytes to write."""
        stream = self._next_stream
        if stream > _MAX_STREAM:
            raise LocalProtocolError("stream ids are used up")
        body = render_request(service, method, payload, timeout_ns)
        data = render_message(self._calls, stream, REQUEST, body)
        self._next_stream += 2
        self._waiting.add(stream)
        return stream, data

    def reply(self, stream: int, payload: bytes = b"") -> bytes:
        """The bytes that answer ``stream``; what the other side would refuse for its size becomes an error status."""
        body = render_response(payload)
        if len(body) > MAX_SEND:
            return self.reply_error(
                stream, Code.RESOURCE_EXHAUSTED, f"a reply of {len(body)} bytes is above {MAX_SEND}"
            )
        self._close(stream)
        return render_message(self._serves, stream, RESPONSE, body)

    def reply_error(self, stream: int, code: int, message: str) -> bytes:
        self._close(stream)
        return render_message(self._serves, stream, RESPONSE, render_error(code, message))

    def _close(self, stream: int) -> None:
        try:
            self._open.remove(stream)
        except KeyError:
            raise LocalProtocolError(f"stream {stream} is not waiting for a reply") from None

    def _request_message(self, stream: int, kind: int, body: Buffer, events: list[Event]) -> None:
        if kind not in (REQUEST, MessageReader.TOO_LARGE):
            return
        if not stream & 1 or stream <= self._last_stream:
            self._refuse(stream, Code.INVALID_ARGUMENT, f"stream id {stream} is even or was used before", events)
            return
        self._last_stream = stream
        if kind == MessageReader.TOO_LARGE:
            reason = f"a request of {bytes(body).decode()} bytes is above what this plugin takes"
            self._refuse(stream, Code.RESOURCE_EXHAUSTED, reason, events)
            return
        call = parse_request(body)
        self._open.add(stream)
        events.append(RequestReceived(stream=stream, call=call))

    def _refuse(self, stream: int, code: Code, reason: str, events: list[Event]) -> None:
        data = render_message(self._serves, stream, RESPONSE, render_error(code, reason))
        events.append(MustSend(data=data, reason=reason))

    def _response_message(self, stream: int, kind: int, body: Buffer, events: list[Event]) -> None:
        if kind not in (RESPONSE, MessageReader.TOO_LARGE) or stream not in self._waiting:
            return
        self._waiting.discard(stream)
        if kind == MessageReader.TOO_LARGE:
            status, payload = Status(code=Code.RESOURCE_EXHAUSTED, message="the response is too large"), b""
        else:
            status, payload = parse_response(body)
        events.append(ResponseReceived(stream=stream, status=status, payload=payload))
