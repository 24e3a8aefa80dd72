"""The runtime's end of NRI in Python, for what the runtime's own library cannot be made to do.

Split and oversized frames, garbage, stalls, another runtime's order of events. It reads as strictly as Go's library
does: one ``Read`` takes one mux frame and fails if the frame is larger than the buffer offered, ttrpc reads through a
buffer of 4096 bytes, and a connection's queue holds 256 frames. Everything else is tested against the library itself.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nri_warmup.nri._pb import nri_pb2 as pb
from nri_warmup.ttrpc.envelope import Call, Status, parse_request, parse_response, render_request, render_response
from nri_warmup.ttrpc.frames import REQUEST, RESPONSE, render_message

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
DEADLINE_S = 30.0
"""Longer than anything should take on a busy machine; a test that meets it fails."""
QUEUE_FRAMES = 256
BUFFER = 4096


class Closed(Exception):
    """The connection is gone; ``str()`` says why."""


class GoConnection:
    """One mux connection as Go reads it: frames in a bounded queue, a buffered reader on top."""

    def __init__(self) -> None:
        self.frames: queue.Queue[bytes | None] = queue.Queue(QUEUE_FRAMES + 1)
        self._buffered = b""

    def read_message(self, timeout: float) -> tuple[int, int, bytes]:
        """(stream, type, data) of the next message."""
        header = self._read_full(10, timeout)
        size, stream, kind, _ = struct.unpack(">IIBB", header)
        return stream, kind, self._read_full(size, timeout)

    def _read_full(self, size: int, timeout: float) -> bytes:
        out = self._buffered[:size]
        self._buffered = self._buffered[size:]
        while len(out) < size:
            wanted = size - len(out)
            # bufio.Reader reads past its buffer only where the caller wants at least as much as it holds.
            offered = wanted if wanted >= BUFFER else BUFFER
            frame = self.frames.get(timeout=timeout)
            if frame is None:
                raise Closed("end of stream")
            if len(frame) > offered:
                raise Closed(f"ENOMEM: a frame of {len(frame)} bytes into {offered}")
            out, self._buffered = out + frame[:wanted], frame[wanted:]
        return out


class Peer:
    """One connected plugin, seen from the runtime."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = 1
        self.closed = threading.Event()
        self.why_closed = ""
        self.frame_sizes: list[tuple[int, int]] = []
        """(connection, bytes) of every frame the plugin has sent."""
        self.connections = {1: GoConnection(), 2: GoConnection()}
        self._reader = threading.Thread(target=self._read_frames, daemon=True)
        self._reader.start()

    # -- what a runtime does ----------------------------------------------------------------------------------------

    def accept_registration(self, *, reply: bool = True) -> pb.RegisterPluginRequest:
        stream, call = self.read_request()
        assert call.method == "RegisterPlugin"
        if reply:
            self.reply(stream)
        return pb.RegisterPluginRequest.FromString(call.payload)

    def configure(
        self,
        *,
        config: str = "",
        name: str = "containerd",
        version: str = "2.1.9",
        timeout_ms: int = 2000,
        nri_version: str = "",
    ) -> int:
        """Configure; the event mask the plugin answers with."""
        request = pb.ConfigureRequest(
            config=config, runtime_name=name, runtime_version=version, NRI_version=nri_version
        )
        if timeout_ms:
            request.registration_timeout, request.request_timeout = 5000, timeout_ms
        return pb.ConfigureResponse.FromString(self.call("Configure", request)).events

    def synchronize(
        self, pods: Sequence[pb.PodSandbox] = (), containers: Sequence[pb.Container] = (), more: bool = False
    ) -> pb.SynchronizeResponse:
        request = pb.SynchronizeRequest(pods=pods, containers=containers, more=more)
        return pb.SynchronizeResponse.FromString(self.call("Synchronize", request))

    def connect(self, **configure: Any) -> int:
        """The whole handshake of a runtime with nothing running; the event mask."""
        self.accept_registration()
        mask = self.configure(**configure)
        self.synchronize()
        return mask

    def call(self, method: str, request: Any = None, *, timeout_ns: int = 0, wait_s: float = DEADLINE_S) -> bytes:
        """Call the plugin; the reply's payload. Raises Refused where it answers with an error."""
        stream = self.send_call(method, request, timeout_ns=timeout_ns)
        return self.read_reply(stream, wait_s)

    def send_call(self, method: str, request: Any = None, *, timeout_ns: int = 0, service: str = PLUGIN) -> int:
        payload = request if isinstance(request, bytes) else request.SerializeToString() if request is not None else b""
        stream, self._stream = self._stream, self._stream + 2
        metadata = (("containerd-namespace-ttrpc", "k8s.io"),)
        self.write_message(1, stream, REQUEST, render_request(service, method, payload, timeout_ns, metadata))
        return stream

    def state_change(self, event: int, pod: pb.PodSandbox, container: pb.Container | None = None) -> bytes:
        return self.call("StateChange", pb.StateChangeEvent(event=event, pod=pod, container=container))

    def read_reply(self, stream: int, wait_s: float = DEADLINE_S) -> bytes:
        got, kind, data = self.connections[1].read_message(wait_s)
        assert (got, kind) == (stream, RESPONSE), f"a message of type {kind} for stream {got}, not a reply to {stream}"
        status, payload = parse_response(data)
        if status.code:
            raise Refused(status)
        return payload

    def read_request(self, wait_s: float = DEADLINE_S) -> tuple[int, Call]:
        """The plugin's next call."""
        stream, kind, data = self.connections[2].read_message(wait_s)
        assert kind == REQUEST
        return stream, parse_request(data)

    def reply(self, stream: int, payload: bytes = b"") -> None:
        self.write(render_message(2, stream, RESPONSE, render_response(payload)))

    # -- the wire ---------------------------------------------------------------------------------------------------

    def write_message(self, conn: int, stream: int, kind: int, data: bytes) -> None:
        """Of any size, as NRI up to 0.6.1 writes: 4096 bytes, then the rest in one frame."""
        message = struct.pack(">IIBB", len(data), stream, kind, 0) + data
        for frame in (message[:BUFFER], message[BUFFER:]):
            if frame:
                self.write(struct.pack(">II", conn, len(frame)) + frame)

    def write(self, data: bytes) -> None:
        self._sock.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._reader.join(DEADLINE_S)

    def wait_closed(self, wait_s: float = DEADLINE_S) -> str:
        assert self.closed.wait(wait_s), "the connection is still open"
        return self.why_closed

    def _read_frames(self) -> None:
        try:
            with self._sock.dup() as sock, sock.makefile("rb") as stream:
                while header := stream.read(8):
                    conn, size = struct.unpack(">II", header)
                    frame = stream.read(size)
                    self.frame_sizes.append((conn, size))
                    if conn in self.connections:
                        frames = self.connections[conn].frames
                        if frames.qsize() >= QUEUE_FRAMES:
                            self.why_closed = "failed to queue payload for reading"
                            break
                        frames.put(frame)
        except (OSError, struct.error) as error:
            self.why_closed = str(error)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for connection in self.connections.values():
            with contextlib.suppress(queue.Full):
                connection.frames.put_nowait(None)
        self.closed.set()


class Refused(Exception):
    """The plugin answered with an error status."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"code {status.code}: {status.message}")
        self.code = status.code
        self.message = status.message


class FakeRuntime:
    """Listens where a plugin connects. Plugins come by ``accept``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._peers: list[Peer] = []

    def accept(self, wait_s: float = DEADLINE_S) -> Peer:
        self._listener.settimeout(wait_s)
        sock, _ = self._listener.accept()
        sock.settimeout(None)
        self._peers.append(Peer(sock))
        return self._peers[-1]

    def stop(self) -> None:
        """As a runtime that stops: the socket's path is gone, connections end."""
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for peer in self._peers:
            peer.close()

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def launched_pair() -> Iterator[tuple[Peer, int]]:
    """A launched plugin's connection: the runtime's end, and the descriptor the plugin inherits."""
    ours, theirs = socket.socketpair()
    peer = Peer(ours)
    try:
        yield peer, theirs.detach()
    finally:
        peer.close()


def make_pod(name: str = "pod", annotations: dict[str, str] | None = None, **fields: Any) -> pb.PodSandbox:
    return pb.PodSandbox(id=f"{name}-sandbox", name=name, namespace="default", annotations=annotations or {}, **fields)


def make_container(pod: pb.PodSandbox, name: str = "server", **fields: Any) -> pb.Container:
    return pb.Container(id=f"{pod.name}-{name}", pod_sandbox_id=pod.id, name=name, **fields)
