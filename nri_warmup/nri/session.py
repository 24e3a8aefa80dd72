"""One connection's life: register, configure, synchronize, events, end.

Owns the order of the handshake, the deadline of every request and what is answered when a handler is late or fails. Not
reconnecting (stub.py).

    plugin                              runtime
      RegisterPlugin  ------------------->          the reply may come after Configure, even after Synchronize
      <------------------------ Configure
      event mask  ----------------------->
      <------------------------ Synchronize         once or in parts; not to launched plugins of NRI <= 0.6.1
      <------------------------ events ...
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
import time
from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from nri_warmup.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from nri_warmup.nri.dispatch import MORE, Dispatcher, UnknownMethod, event_of
from nri_warmup.nri.events import METHODS, PLUGIN_SERVICE, RUNTIME_SERVICE, Event
from nri_warmup.nri.guard import DeadlineGuard
from nri_warmup.nri.link import Link
from nri_warmup.nri.plugin import Plugin
from nri_warmup.nri.versions import RuntimeInfo, parse_configure
from nri_warmup.ttrpc import Code, Connection, MustSend, RequestReceived, ResponseReceived, Status
from nri_warmup.ttrpc.frames import MAX_SEND
from nri_warmup.ttrpc.wire import render_bytes, render_varint

LOG = logging.getLogger("nri_warmup.nri")


class Request:
    """One call of the runtime that waits for its reply, under the guard that decides who sends it."""

    __slots__ = ("deadline", "done", "event", "method", "session", "stream")

    def __init__(self, session: Session, stream: int, method: str, deadline: float) -> None:
        self.session = session
        self.stream = stream
        self.method = method
        self.event: Event | None = None
        self.deadline = deadline
        self.done = False

    def on_late(self) -> None:
        self.session.late(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """Why a session ended and how far it got."""

    reason: str
    configured: bool = False
    synchronized: bool = False
    mask: int = 0


CURRENT: ContextVar[Request | None] = ContextVar("nri_request", default=None)
"""The request whose handler runs in this context: what must not be done inside a handler looks here."""


class Session:
    """One connection. ``run`` returns when it has ended."""

    def __init__(
        self,
        plugin: Plugin,
        sock: socket.socket,
        guard: DeadlineGuard,
        *,
        launched: bool = False,
        config_text: str = "",
        mask_limit: int = 0x7FFFFFFF,
        margin_s: float = 0.25,
    ) -> None:
        self._plugin = plugin
        self._guard = guard
        self._launched = launched
        self._config_text = config_text
        self._mask_limit = mask_limit
        self._margin_s = margin_s
        self._connection = Connection()
        self._dispatcher = Dispatcher(plugin)
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._sync_began: float | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self.runtime = RuntimeInfo()
        self.registered = False
        self.configured = False
        self.synchronized = False
        self.mask = 0
        self._link = Link(sock, self._data, self._lost)

    # -- the plugin's side ------------------------------------------------------------------------------------------

    async def run(self, name: str, index: str) -> SessionEnd:
        """Register and serve until the connection ends. Cancelling closes it."""
        try:
            # Served before and while this waits: the runtime may want Configure and Synchronize answered first. No
            # timer of our own: the runtime registers plugins one after another and may be seconds away from ours.
            request = render_bytes(1, name.encode()) + render_bytes(2, index.encode())
            registration = asyncio.ensure_future(self.call("RegisterPlugin", request))
            registration.add_done_callback(self._registration_done)
            reason = await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.close("stopped")
            raise
        finally:
            for call in self._calls.values():
                call.cancel()
        return SessionEnd(reason=reason, configured=self.configured, synchronized=self.synchronized, mask=self.mask)

    async def call(self, method: str, payload: bytes) -> bytes:
        """Call the runtime. Raises CallFailed with its status."""
        stream, data = self._connection.request(RUNTIME_SERVICE, method, payload)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[stream] = future
        try:
            self._link.write(data)
            return await future
        finally:
            self._calls.pop(stream, None)

    def close(self, reason: str) -> None:
        self._link.close(reason)

    def _registration_done(self, registration: asyncio.Future[bytes]) -> None:
        if registration.cancelled():
            return
        error = registration.exception()
        if error is None:
            self.registered = True
        elif not self._link.is_closed:
            # The runtime leaves a refused plugin's connection open and useless.
            self.close(f"registration refused: {error}")

    # -- the wire's side --------------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> None:
        if not reason:
            reason = "the runtime closed the connection"
            try:
                self._connection.receive_eof()
            except RemoteProtocolError as error:
                reason = str(error)
        if not self._ended.done():
            self._ended.set_result(reason)

    def _data(self, data: bytes) -> None:
        try:
            for event in self._connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    self._request(event)
                elif isinstance(event, ResponseReceived):
                    self._response(event)
                elif isinstance(event, MustSend):
                    LOG.warning("%s", event.reason)
                    self._link.write(event.data)
                if self._link.is_closed:
                    return
        except ProtocolError as error:
            self.close(f"protocol error: {error}")

    def _response(self, response: ResponseReceived) -> None:
        future = self._calls.get(response.stream)
        if future is None or future.done():
            return
        if response.status.code:
            future.set_exception(CallFailed(response.status))
        else:
            future.set_result(response.payload)

    def _request(self, received: RequestReceived) -> None:
        stream, call = received.stream, received.call
        method, payload = call.method, call.payload
        if call.service != PLUGIN_SERVICE:
            self._refuse(stream, Code.UNIMPLEMENTED, f"service {call.service}")
            return
        if method == "Configure":
            self._configure(stream, payload)
            return
        now = time.monotonic()
        if method == "Synchronize" and self._sync_began is None:
            self._sync_began = now
        budget = self._budget_s(call.timeout_ns)
        request = Request(self, stream, method, now + budget)
        self._guard.arm(request, budget)
        token = CURRENT.set(request)
        try:
            result = self._plugin.raw_event(method, payload)
            if result is None:
                result = self._decoded(request, payload)
            if isinstance(result, bytes):
                self._answer(request, result)
            else:
                self._await(request, result)
        except Exception as error:
            self._failed(request, error)
        finally:
            CURRENT.reset(token)

    def _decoded(self, request: Request, payload: bytes) -> bytes | Awaitable[Any]:
        """What the plugin's own method for the event says, rendered unless it has to be awaited."""
        try:
            request.event = event = event_of(request.method, payload)
        except UnknownMethod:
            if request.method != "Shutdown" and self._claim(request):
                self._refuse(request.stream, Code.UNIMPLEMENTED, f"method {request.method}")
            return b""
        if event is None:
            return b""
        prepared = self._dispatcher.prepare(event, request.method, payload)
        if isinstance(prepared, bytes):
            return prepared
        result = self._dispatcher.invoke(prepared)
        if inspect.isawaitable(result):
            return self._rendered(event, result)
        return self._dispatcher.render(event, result)

    async def _rendered(self, event: Event, result: Awaitable[Any]) -> bytes:
        return self._dispatcher.render(event, await result)

    def _refuse(self, stream: int, code: Code, text: str) -> None:
        LOG.warning("refused a call of the runtime: %s is not implemented here", text)
        self._link.write(self._connection.reply_error(stream, code, f"{text} is not implemented"))

    def _budget_s(self, timeout_ns: int) -> float:
        """How long a reply may take: until the margin before the runtime's own timer, or half of a short one."""
        timeout = self.runtime.request_timeout_s
        if 0 < timeout_ns < timeout * 1e9:
            timeout = timeout_ns / 1e9
        return max(timeout - self._margin_s, timeout / 2)

    # -- handshake --------------------------------------------------------------------------------------------------

    def _configure(self, stream: int, payload: bytes) -> None:
        text, self.runtime = parse_configure(payload)
        self._dispatcher.runtime = self.runtime
        try:
            self._plugin.configure(text or self._config_text, self.runtime)
            wanted = self._plugin.event_mask()
        except Exception as error:
            LOG.exception("configure failed")
            self._link.write(self._connection.reply_error(stream, Code.UNKNOWN, f"configure: {error}"))
            self.close(f"configure failed: {error}")
            return
        self.mask = wanted & self.runtime.valid_mask & self._mask_limit
        if self.mask != wanted:
            LOG.warning("events 0x%x are not known to this runtime and will not come", wanted & ~self.mask)
        self._link.write(self._connection.reply(stream, render_varint(2, self.mask or Event.REMOVE_POD_SANDBOX.bit)))
        self.configured = True
        info = self.runtime
        LOG.info(
            "configured by %s %s, NRI %s%s, events 0x%x, timeouts: request %g s, registration %g s",
            info.name,
            info.version,
            ".".join(map(str, info.nri_version)),
            "" if info.nri_told else " (inferred)",
            self.mask,
            info.request_timeout_s,
            info.registration_timeout_s,
        )
        self._call_plugin("connected", self.runtime)

    def _sync_answered(self, *, more: bool, failed: str = "") -> None:
        """The zombie watchdog: a runtime that gave up on our Synchronize may keep the connection and never send an
        event.
        """
        if more or self._sync_began is None:
            return
        took = time.monotonic() - self._sync_began
        self._sync_began = None
        if not failed and took >= self.runtime.request_timeout_s:
            failed = f"it took {took:.2f} s of {self.runtime.request_timeout_s:g}"
        if not failed:
            self.synchronized = True
            # At once: another event may have been read together with this one, and must find us synchronized.
            self._call_plugin("synchronized")
        elif self._launched:
            LOG.error("Synchronize failed (%s); a launched plugin cannot connect again", failed)
        else:
            self.close(f"Synchronize failed: {failed}")

    def _call_plugin(self, name: str, *arguments: Any) -> None:
        try:
            getattr(self._plugin, name)(*arguments)
        except Exception:
            LOG.exception("%s failed", name)

    # -- replies ----------------------------------------------------------------------------------------------------

    def _await(self, request: Request, awaitable: Awaitable[bytes]) -> None:
        # Made inside the handler's context, so that the task inherits CURRENT. Never cancelled: it may await work that
        # is to go on after the reply.
        task = asyncio.ensure_future(awaitable)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._task_done(request, done))

    def _task_done(self, request: Request, task: asyncio.Future[bytes]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()
        if error is not None:
            self._failed(request, error)
        else:
            self._answer(request, task.result())

    def _claim(self, request: Request) -> bool:
        """Whether the reply is ours to send: not if the guard was first, nor if nobody is there to get it."""
        request.done = True
        return self._guard.disarm(request) and not self._link.is_closed

    def _answer(self, request: Request, payload: bytes) -> None:
        if not self._claim(request):
            return
        if len(payload) + 8 > MAX_SEND:
            # Sent, it would end the connection; as an error it would fail the container.
            LOG.error("the reply to %s has %d bytes, which no runtime takes", _name(request), len(payload))
            self._reply_safely(request, Code.RESOURCE_EXHAUSTED, f"a reply of {len(payload)} bytes is too large")
            return
        self._link.write(self._connection.reply(request.stream, payload))
        if request.method == "Synchronize":
            self._sync_answered(more=payload == MORE)

    def _failed(self, request: Request, error: BaseException) -> None:
        """A handler raised: the runtime goes on without us, or, for what fails closed, hears an error."""
        LOG.error("%s failed: %s", _name(request), error, exc_info=error)
        if self._claim(request):
            self._reply_safely(request, Code.UNKNOWN, f"{type(error).__name__}: {error}")

    def late(self, request: Request) -> None:
        """The deadline has come. Runs in the guard's thread; the loop's thread may be inside the handler."""
        request.done = True
        LOG.error("the handler of %s is late; answered for it before the runtime's timeout", _name(request))
        self._reply_safely(request, Code.DEADLINE_EXCEEDED, "the plugin did not answer in time")

    def _reply_safely(self, request: Request, code: Code, text: str) -> None:
        event = request.event or METHODS.get(request.method)
        if event in self._plugin.fail_closed:
            reply = self._connection.reply_error(request.stream, code, text)
        else:
            reply = self._connection.reply(request.stream)
        self._link.write(reply)
        if request.method == "Synchronize":
            # Closing is the business of the loop's thread, when it is free.
            self._link.later(self._sync_failed, text)

    def _sync_failed(self, text: str) -> None:
        self._sync_answered(more=False, failed=text)


def _name(request: Request) -> str:
    return request.method if request.event is None else request.event.method_name


class CallFailed(LocalProtocolError):
    """The runtime answered a call of ours with an error."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{status.message} (code {status.code})")
        self.status = status
