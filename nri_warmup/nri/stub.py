"""An NRI plugin in Python: derive from ``Plugin``, hand it to ``run``.

    class Greeter(Plugin):
        def create_container(self, pod, container):
            return messages.ContainerAdjustment(env=[messages.KeyValue(key="HELLO", value=pod.name)])

    if __name__ == "__main__":
        run(Greeter())

Owns reconnecting, identity and process life. docs/nri-stub.md is the guide.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nri_warmup.errors import ConfigError, LocalProtocolError
from nri_warmup.nri.events import MASK_TO_0_9, Event
from nri_warmup.nri.guard import DeadlineGuard
from nri_warmup.nri.identity import DEFAULT_SOCKET, Identity, find_identity
from nri_warmup.nri.plugin import Plugin, Reply
from nri_warmup.nri.session import CURRENT, CallFailed, Session, SessionEnd
from nri_warmup.nri.versions import RuntimeInfo

if TYPE_CHECKING:
    from nri_warmup.nri._pb.nri_pb2 import ContainerUpdate

__all__ = [
    "Backoff",
    "CallFailed",
    "Event",
    "Identity",
    "Plugin",
    "Reply",
    "RuntimeInfo",
    "Stub",
    "UpdateRefused",
    "run",
    "serve",
]

LOG = logging.getLogger("nri_warmup.nri")

_STABLE_S = 10.0
"""A connection that lasted this long was a good one: the next attempt is soon again."""


class UpdateRefused(LocalProtocolError):
    """UpdateContainers was not sent, because it could freeze the runtime."""


class Backoff:
    """Delays between attempts: doubling up to a limit, cut by a random part so that plugins do not come in step."""

    def __init__(self, first_s: float = 0.5, most_s: float = 30.0, pick: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._pick = pick
        self._attempts = 0

    def next_s(self) -> float:
        whole: float = min(self._most_s, self._first_s * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return whole * (0.5 + self._pick() / 2)

    def reset(self) -> None:
        self._attempts = 0


class Stub:
    """Keeps one plugin connected. ``run`` comes back only for a launched plugin, whose connection cannot be had
    again.
    """

    def __init__(
        self,
        plugin: Plugin,
        identity: Identity,
        *,
        socket_path: str = DEFAULT_SOCKET,
        config_text: str = "",
        margin_s: float = 0.25,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plugin = plugin
        self._identity = identity
        self._socket_path = socket_path
        self._config_text = config_text
        self._margin_s = margin_s
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._sleep = sleep
        self._mask_limit = 0x7FFFFFFF
        self._complaint = ""
        self._guard = DeadlineGuard()
        self.session: Session | None = None

    async def run(self) -> str:
        """Connect and serve, again and again. Returns the reason when a launched plugin's connection has ended."""
        try:
            if self._identity.launched_fd is not None:
                return await self._serve(inherited_socket(self._identity.launched_fd))
            while True:
                began = self._clock()
                reason = await self._connect_and_serve()
                if self._clock() - began >= _STABLE_S:
                    self._backoff.reset()
                delay = self._backoff.next_s()
                self._complain(f"{reason}; next attempt in at most {delay:.0f} s")
                await self._sleep(delay)
        finally:
            self._guard.close()

    async def update_containers(self, updates: Sequence[ContainerUpdate]) -> list[ContainerUpdate]:
        """Change containers outside of any event; returns those that failed where the runtime says so.

        Raises UpdateRefused on NRI up to 0.12.0, where this can freeze the runtime for good, and inside a handler,
        where the runtime waits for the handler and this for the runtime. Raises CallFailed where the runtime refuses;
        code 2 usually means that some updates failed.
        """
        from nri_warmup.nri._pb import nri_pb2

        request = CURRENT.get()
        if request is not None and not request.done:
            raise UpdateRefused("UpdateContainers inside a handler; put the updates into its reply")
        session = self.session
        if session is None or not session.configured:
            raise UpdateRefused("not connected")
        if not session.runtime.takes_unsolicited_updates:
            raise UpdateRefused(
                f"UpdateContainers can freeze a runtime with NRI {'.'.join(map(str, session.runtime.nri_version))}; "
                "it is safe after 0.12.0"
            )
        payload = nri_pb2.UpdateContainersRequest(update=updates).SerializeToString()
        reply = await session.call("UpdateContainers", payload)
        return list(nri_pb2.UpdateContainersResponse.FromString(reply).failed)

    async def _connect_and_serve(self) -> str:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            await asyncio.get_running_loop().sock_connect(sock, self._socket_path)
        except OSError as error:
            sock.close()
            return connect_problem(self._socket_path, error)
        except BaseException:
            sock.close()
            raise
        return await self._serve(sock)

    async def _serve(self, sock: socket.socket) -> str:
        self._plugin.runtime_pid = peer_pid(sock)
        session = Session(
            self._plugin,
            sock,
            self._guard,
            launched=self._identity.launched_fd is not None,
            config_text=self._config_text,
            mask_limit=self._mask_limit,
            margin_s=self._margin_s,
        )
        self.session = session
        self._complaint = ""
        try:
            end = await session.run(self._identity.name, self._identity.index)
        finally:
            self.session = None
        self._learn(end)
        try:
            self._plugin.disconnected(end.reason)
        except Exception:
            LOG.exception("disconnected failed")
        return f"disconnected: {end.reason}"

    def _learn(self, end: SessionEnd) -> None:
        """A runtime that closes right after our mask knows fewer events than we took it for."""
        if end.configured and not end.synchronized and end.mask & ~MASK_TO_0_9 & self._mask_limit:
            self._mask_limit = MASK_TO_0_9
            LOG.warning("the runtime closed the connection after our events; leaving out those of NRI 0.10 from now on")

    def _complain(self, text: str) -> None:
        """Once for each kind of trouble, not once a second for the same."""
        kind = text.partition(";")[0]
        if kind != self._complaint:
            self._complaint = kind
            LOG.warning("%s", text)


def peer_pid(sock: socket.socket) -> int:
    """Who listens at the other end, told by the kernel (unix(7), SO_PEERCRED); 0 where it cannot tell."""
    try:
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    except OSError:
        return 0
    return int(pid)


def connect_problem(path: str, error: OSError) -> str:
    """What a failed connect means to an operator."""
    if isinstance(error, FileNotFoundError):
        return f"no socket at {path}: is NRI enabled in the runtime's configuration"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at {path}: is the runtime running"
    return f"cannot connect to {path}: {error.strerror or error}"


def inherited_socket(fd: int) -> socket.socket:
    """The runtime's end of a launched plugin. Raises ConfigError where the descriptor is no socket."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise ConfigError(f"file descriptor {fd} from the runtime: {error.strerror or error}") from None
    sock.set_inheritable(False)
    return sock


async def serve(plugin: Plugin, identity: Identity, *, socket_path: str = DEFAULT_SOCKET, config_text: str = "") -> str:
    """Serve a plugin on the running loop; see Stub.run. For programs that have a loop of their own."""
    return await Stub(plugin, identity, socket_path=socket_path, config_text=config_text).run()


def run(plugin: Plugin, argv: Sequence[str] | None = None) -> int:
    """A whole plugin process: flags, environment, logging, signals. Returns the exit status.

    0 after SIGTERM, SIGINT or when a launched plugin's runtime is gone; 2 where it is not known who the plugin is.
    """
    options = _parse_arguments(type(plugin).__doc__ or "", argv)
    try:
        identity = find_identity(
            name=options.name,
            index=options.index,
            argv0=sys.argv[0],
            default_name=plugin.name,
            default_index=plugin.index,
        )
        config_text = Path(options.config).read_text(encoding="utf-8") if options.config else ""
    except (ConfigError, OSError) as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 2
    from nri_warmup.nri.logs import configure_logging

    configure_logging(f"{identity.index}-{identity.name}", options.log_level)
    return asyncio.run(
        _run_until_signal(Stub(plugin, identity, socket_path=options.socket_path, config_text=config_text))
    )


async def _run_until_signal(stub: Stub) -> int:
    task = asyncio.ensure_future(stub.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        LOG.info("%s", await task)
    except asyncio.CancelledError:
        LOG.info("stopped")
    return 0


def _parse_arguments(description: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--name", "-name", default="", help="plugin name (else NRI_PLUGIN_NAME, else the file's name)")
    parser.add_argument("--index", "--idx", "-idx", default="", help="two digits, the place among the plugins")
    parser.add_argument("--socket-path", default=DEFAULT_SOCKET, help="the runtime's NRI socket (%(default)s)")
    parser.add_argument("--config", "-config", default="", help="file whose text goes to configure()")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser.parse_args(argv)
