"""The stub against a runtime that splits, stalls, lies and goes away; the usual is tested against the real library."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nri_warmup.nri import messages as m
from nri_warmup.nri.events import MASK_FROM_0_10, MASK_TO_0_9, Event
from nri_warmup.nri.stub import Backoff, CallFailed, Identity, Plugin, RuntimeInfo, Stub, UpdateRefused
from tests.component.fake_runtime import (
    FakeRuntime,
    Refused,
    launched_pair,
    make_container,
    make_pod,
)
from tests.component.plugin_thread import PluginThread, eventually

POD = make_pod()
CONTAINER = make_container(POD)
CREATE = m.CreateContainerRequest(pod=POD, container=CONTAINER)
ME = Identity(name="test", index="10")


class Recorder(Plugin):
    """Remembers what it hears; adjusts by what a test sets."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[str, object]] = queue.Queue()
        self.adjust: m.ContainerAdjustment | None = None
        self.runtime: RuntimeInfo | None = None
        self.config: str | None = None

    def configure(self, config: str, runtime: RuntimeInfo) -> None:
        self.config, self.runtime = config, runtime

    def disconnected(self, reason: str) -> None:
        self.heard.put(("disconnected", reason))

    def synchronize(self, pods: Sequence[m.PodSandbox], containers: Sequence[m.Container]) -> None:
        self.heard.put(("synchronize", ([p.id for p in pods], [c.id for c in containers])))

    def create_container(self, pod: m.PodSandbox, container: m.Container) -> m.ContainerAdjustment | None:
        self.heard.put(("create", container.id))
        return self.adjust

    def start_container(self, pod: m.PodSandbox, container: m.Container) -> None:
        self.heard.put(("start", container.pid))

    def stop_pod_sandbox(self, pod: m.PodSandbox) -> None:
        self.heard.put(("stop-pod", pod.id))

    def next(self, wanted: str) -> object:
        while True:
            name, value = self.heard.get(timeout=30)
            if name == wanted:
                return value


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(tmp_path / "nri.sock") as fake:
        yield fake


def fast(**more: object) -> dict[str, object]:
    return {"backoff": Backoff(first_s=0.01, most_s=0.05), **more}


def start(plugin: Plugin, runtime: FakeRuntime, **options: object) -> PluginThread:
    options = fast(**options)
    return PluginThread(lambda: Stub(plugin, ME, socket_path=str(runtime.path), **options).run())  # type: ignore[arg-type]


# -- handshake ------------------------------------------------------------------------------------------------------


def test_configure_and_synchronize_may_come_before_the_registration_reply(runtime: FakeRuntime) -> None:
    plugin = Recorder()
    with start(plugin, runtime):
        peer = runtime.accept()
        stream, call = peer.read_request()
        request = m.RegisterPluginRequest.FromString(call.payload)
        assert (call.method, request.plugin_name, request.plugin_idx) == ("RegisterPlugin", "test", "10")
        mask = peer.configure(version="1.7.24~ds1", timeout_ms=0)
        peer.synchronize([POD], [CONTAINER])
        peer.reply(stream)
        assert peer.call("CreateContainer", CREATE) == b""
        assert mask == Event.CREATE_CONTAINER.bit | Event.START_CONTAINER.bit | Event.STOP_POD_SANDBOX.bit
        assert plugin.next("synchronize") == (["pod-sandbox"], ["pod-server"])
        assert plugin.runtime is not None and plugin.runtime.nri_version == (0, 6, 1)
        assert plugin.config == ""


def test_a_refused_registration_closes_and_tries_again(runtime: FakeRuntime) -> None:
    from nri_warmup.ttrpc.envelope import render_error
    from nri_warmup.ttrpc.frames import RESPONSE, render_message

    with start(Recorder(), runtime):
        peer = runtime.accept()
        stream, _ = peer.read_request()
        peer.write(render_message(2, stream, RESPONSE, render_error(2, "invalid plugin index")))
        peer.wait_closed()
        runtime.accept().connect()


def test_synchronize_in_parts_echoes_more_and_hands_over_the_whole(runtime: FakeRuntime) -> None:
    plugin = Recorder()
    pods = [make_pod(f"p{i}") for i in range(6)]
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.accept_registration()
        peer.configure()
        assert peer.synchronize(pods[:3], [make_container(p) for p in pods[:2]], more=True).more
        assert peer.synchronize([], [make_container(p) for p in pods[2:]], more=True).more
        last = peer.synchronize(pods[3:])
        assert not last.more and not last.update
        assert plugin.next("synchronize") == ([p.id for p in pods], [f"p{i}-server" for i in range(6)])


class WantsNewEvents(Recorder):
    def update_pod_sandbox(self, pod: m.PodSandbox, overhead: m.LinuxResources, resources: m.LinuxResources) -> None:
        self.heard.put(("update-pod", pod.id))


def test_events_newer_than_the_runtime_are_left_out(runtime: FakeRuntime) -> None:
    with start(WantsNewEvents(), runtime):
        peer = runtime.accept()
        peer.accept_registration()
        assert peer.configure(version="2.1.9") & ~MASK_TO_0_9 == 0
        peer.close()
        peer = runtime.accept()
        peer.accept_registration()
        assert peer.configure(version="2.2.1") & ~MASK_TO_0_9 == Event.UPDATE_POD_SANDBOX.bit


def test_a_runtime_that_closes_on_the_mask_gets_a_smaller_one_next_time(runtime: FakeRuntime) -> None:
    plugin = WantsNewEvents()
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.accept_registration()
        assert peer.configure(nri_version="v0.12.3") & Event.UPDATE_POD_SANDBOX.bit
        peer.close()
        peer = runtime.accept()
        peer.accept_registration()
        mask = peer.configure(nri_version="v0.12.3")
        assert mask and mask & ~MASK_TO_0_9 == 0 and mask < MASK_FROM_0_10


def test_a_plugin_without_handlers_does_not_subscribe_to_everything(runtime: FakeRuntime) -> None:
    with start(Plugin(), runtime):
        assert runtime.accept().connect() == Event.REMOVE_POD_SANDBOX.bit


# -- both forms of event --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dedicated", [False, True], ids=["StateChange", "own-method"])
def test_both_forms_of_an_event_reach_the_same_handler(runtime: FakeRuntime, dedicated: bool) -> None:
    plugin = Recorder()
    container = make_container(POD, pid=77)
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect(nri_version="0.12.0" if dedicated else "")
        if dedicated:
            assert peer.call("StartContainer", m.StartContainerRequest(pod=POD, container=container)) == b""
            assert peer.call("StopPodSandbox", m.StopPodSandboxRequest(pod=POD)) == b""
        else:
            assert peer.state_change(Event.START_CONTAINER, POD, container) == b""
            assert peer.state_change(Event.STOP_POD_SANDBOX, POD) == b""
        assert plugin.next("start") == 77
        assert plugin.next("stop-pod") == POD.id


def test_what_nobody_handles_is_ok_and_what_nobody_knows_is_unimplemented(runtime: FakeRuntime) -> None:
    with start(Recorder(), runtime):
        peer = runtime.accept()
        peer.connect()
        assert peer.state_change(Event.POST_START_CONTAINER, POD, CONTAINER) == b""
        assert peer.state_change(99, POD) == b""
        assert peer.call("RemoveContainer", m.RemoveContainerRequest(pod=POD, container=CONTAINER)) == b""
        assert peer.call("Shutdown") == b""
        for method, service in (("Reticulate", "nri.pkg.api.v1alpha1.Plugin"), ("CreateContainer", "other.Service")):
            stream = peer.send_call(method, b"", service=service)
            with pytest.raises(Refused) as refused:
                peer.read_reply(stream)
            assert refused.value.code == 12
        assert peer.call("CreateContainer", CREATE) == b""


# -- framing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_bytes", [10, 4000, 4100, 200_000, 3_900_000])
def test_replies_of_any_size_pass_the_reader_of_the_runtime(runtime: FakeRuntime, env_bytes: int) -> None:
    plugin = Recorder()
    plugin.adjust = m.ContainerAdjustment(env=[m.KeyValue(key="BIG", value="x" * env_bytes)])
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect()
        reply = m.CreateContainerResponse.FromString(peer.call("CreateContainer", CREATE))
        assert len(reply.adjust.env[0].value) == env_bytes
        sizes = [size for conn, size in peer.frame_sizes if conn == 1][2:]
        assert len(sizes) <= 2 and sizes[0] <= 4096


@pytest.mark.parametrize("closed", [False, True])
def test_a_reply_above_the_limit_is_not_sent(runtime: FakeRuntime, closed: bool) -> None:
    """It counts as a handler's failure: nothing is changed, or, for what fails closed, an error says why."""
    plugin = Recorder()
    plugin.fail_closed = frozenset({Event.CREATE_CONTAINER}) if closed else frozenset()
    plugin.adjust = m.ContainerAdjustment(env=[m.KeyValue(key="BIG", value="x" * (5 << 20))])
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect()
        if closed:
            with pytest.raises(Refused) as refused:
                peer.call("CreateContainer", CREATE)
            assert refused.value.code == 8
        else:
            assert peer.call("CreateContainer", CREATE) == b""
        plugin.adjust = m.ContainerAdjustment(annotations={"a": "b"})
        assert peer.call("CreateContainer", CREATE) != b""


def test_a_request_of_sixteen_megabytes_in_small_frames_is_taken(runtime: FakeRuntime) -> None:
    from nri_warmup.ttrpc.envelope import render_request
    from nri_warmup.ttrpc.frames import REQUEST

    plugin = Recorder()
    pod = make_pod("big", annotations={"filler": "x" * (16 << 20)})
    body = render_request(
        "nri.pkg.api.v1alpha1.Plugin", "Synchronize", m.SynchronizeRequest(pods=[pod]).SerializeToString()
    )
    message = len(body).to_bytes(4, "big") + (3).to_bytes(4, "big") + bytes((REQUEST, 0)) + body
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.accept_registration()
        peer.configure()
        for at in range(0, len(message), 60_000):
            piece = message[at : at + 60_000]
            peer.write((1).to_bytes(4, "big") + len(piece).to_bytes(4, "big") + piece)
        assert peer.read_reply(3) == b""
        assert plugin.next("synchronize") == (["big-sandbox"], [])


@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\1\xff\xff\xff\xff",
        b"\0\0\0\1\0\0\0\x0d\0\0\0\3\0\0\0\x65\1\0\x0a\xff\xff",
    ],
    ids=["text", "huge-frame", "bad-protobuf"],
)
def test_garbage_ends_the_connection_and_a_new_one_is_made(runtime: FakeRuntime, noise: bytes) -> None:
    plugin = Recorder()
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect()
        peer.write(noise)
        peer.wait_closed()
        assert "protocol error" in str(plugin.next("disconnected"))
        runtime.accept().connect()


def test_frames_of_other_connections_are_dropped(runtime: FakeRuntime) -> None:
    with start(Recorder(), runtime):
        peer = runtime.accept()
        peer.connect()
        peer.write(b"\0\0\0\x07\0\0\0\x04abcd")
        assert peer.call("CreateContainer", CREATE) == b""


def test_a_peer_that_stalls_in_the_middle_of_a_frame_holds_up_nothing_else(runtime: FakeRuntime) -> None:
    """One byte of a frame, then silence: replies still go out, and the frame is finished later."""
    released = threading.Event()

    class Slow(Recorder):
        async def start_container(self, pod: m.PodSandbox, container: m.Container) -> None:  # type: ignore[override]
            await asyncio.to_thread(released.wait, 30)

    with start(Slow(), runtime, margin_s=0.0):
        peer = runtime.accept()
        peer.connect()
        stream = peer.send_call("StateChange", m.StateChangeEvent(event=6, pod=POD, container=CONTAINER))
        peer.write(b"\0")
        released.set()
        assert peer.read_reply(stream) == b""
        peer.write(b"\0\0\x07\0\0\0\x01x")
        assert peer.call("CreateContainer", CREATE) == b""


# -- deadlines ------------------------------------------------------------------------------------------------------


class Stuck(Recorder):
    """Blocks its whole event loop until released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def create_container(self, pod: m.PodSandbox, container: m.Container) -> m.ContainerAdjustment:
        self.release.wait(30)
        return m.ContainerAdjustment(annotations={"late": "yes"})


class StuckClosed(Stuck):
    fail_closed = frozenset({Event.CREATE_CONTAINER})


@pytest.mark.parametrize("timeout_ns", [0, 400_000_000], ids=["configured", "of-the-call"])
def test_a_handler_that_holds_the_loop_is_answered_for_in_time(runtime: FakeRuntime, timeout_ns: int) -> None:
    plugin = Stuck()
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect(timeout_ms=1000 if not timeout_ns else 30_000)
        assert peer.call("CreateContainer", CREATE, timeout_ns=timeout_ns) == b""
        assert not plugin.release.is_set()
        plugin.release.set()
        # The late result is dropped: the next message is the answer to the next call, on the same connection.
        reply = m.CreateContainerResponse.FromString(peer.call("CreateContainer", CREATE))
        assert reply.adjust.annotations["late"] == "yes"


def test_a_late_handler_that_fails_closed_answers_with_an_error(runtime: FakeRuntime) -> None:
    plugin = StuckClosed()
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect(timeout_ms=1000)
        with pytest.raises(Refused) as refused:
            peer.call("CreateContainer", CREATE)
        plugin.release.set()
        assert refused.value.code == 4


def test_a_late_coroutine_is_answered_for_and_goes_on(runtime: FakeRuntime) -> None:
    class Slow(Recorder):
        release: asyncio.Event

        async def start_container(self, pod: m.PodSandbox, container: m.Container) -> None:  # type: ignore[override]
            self.release = asyncio.Event()
            self.loop = asyncio.get_running_loop()
            await self.release.wait()
            self.heard.put(("finished", None))

    plugin = Slow()
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect(timeout_ms=1000)
        assert peer.state_change(Event.START_CONTAINER, POD, CONTAINER) == b""
        plugin.loop.call_soon_threadsafe(plugin.release.set)
        plugin.next("finished")
        assert peer.call("CreateContainer", CREATE) == b""


@pytest.mark.parametrize("closed", [False, True])
def test_a_handler_that_raises(runtime: FakeRuntime, closed: bool, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Plugin):
        fail_closed = frozenset({Event.CREATE_CONTAINER}) if closed else frozenset()

        def create_container(self, pod: m.PodSandbox, container: m.Container) -> None:
            raise ValueError("x" * 5000)

    with start(Broken(), runtime):
        peer = runtime.accept()
        peer.connect()
        for _ in range(2):
            if closed:
                with pytest.raises(Refused) as refused:
                    peer.call("CreateContainer", CREATE)
                assert refused.value.code == 2 and len(refused.value.message) <= 1000
            else:
                assert peer.call("CreateContainer", CREATE) == b""
    assert any("CreateContainer failed" in record.message for record in caplog.records)


@pytest.mark.parametrize("wrong", ["a string", 7, ["list"]])
def test_a_handler_that_returns_nonsense_changes_nothing(runtime: FakeRuntime, wrong: object) -> None:
    class Wrong(Plugin):
        def create_container(self, pod: m.PodSandbox, container: m.Container):  # type: ignore[no-untyped-def]
            return wrong

    with start(Wrong(), runtime):
        peer = runtime.accept()
        peer.connect()
        assert peer.call("CreateContainer", CREATE) == b""


# -- the zombie, and reconnecting -----------------------------------------------------------------------------------


def test_a_synchronize_that_took_too_long_makes_a_new_connection(runtime: FakeRuntime) -> None:
    """The runtime may have given up on us and keep a connection on which no event ever comes."""

    class Slow(Recorder):
        slow = True

        def synchronize(self, pods: Sequence[m.PodSandbox], containers: Sequence[m.Container]) -> None:
            if self.slow:
                self.slow = False
                time.sleep(0.4)
            super().synchronize(pods, containers)

    plugin = Slow()
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.accept_registration()
        peer.configure(timeout_ms=300)
        peer.synchronize([POD])
        peer.wait_closed()
        assert "Synchronize failed" in str(plugin.next("disconnected"))
        peer = runtime.accept()
        peer.connect()
        assert peer.call("CreateContainer", CREATE) == b""


def test_parts_share_one_budget(runtime: FakeRuntime) -> None:
    with start(Recorder(), runtime):
        peer = runtime.accept()
        peer.accept_registration()
        peer.configure(timeout_ms=1000)
        began = time.monotonic()
        while time.monotonic() - began < 1.1:
            assert peer.synchronize([POD], more=True).more
        peer.synchronize()
        peer.wait_closed()
        runtime.accept()


def test_a_synchronize_that_raises_makes_a_new_connection(runtime: FakeRuntime) -> None:
    class Broken(Recorder):
        broken = True

        def synchronize(self, pods: Sequence[m.PodSandbox], containers: Sequence[m.Container]) -> None:
            if self.broken:
                self.broken = False
                raise ValueError("no")

    with start(Broken(), runtime):
        peer = runtime.accept()
        peer.accept_registration()
        peer.configure()
        peer.synchronize([POD])
        peer.wait_closed()
        runtime.accept().connect()


def test_reconnects_to_a_new_runtime_on_a_new_socket(tmp_path: Path) -> None:
    plugin = Recorder()
    path = tmp_path / "nri.sock"
    first = FakeRuntime(path)
    with start(plugin, first):
        first.accept().connect()
        first.stop()
        plugin.next("disconnected")
        with FakeRuntime(path) as second:
            peer = second.accept()
            peer.connect()
            assert peer.call("CreateContainer", CREATE) == b""
            plugin.next("create")


def test_delays_double_are_cut_at_random_and_have_a_limit() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 9:
            raise asyncio.CancelledError

    stub = Stub(
        Plugin(),
        ME,
        socket_path="/nonexistent/nri.sock",
        backoff=Backoff(first_s=0.5, most_s=30.0, pick=iter([0.0, 1.0] * 5).__next__),
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stub.run())
    assert waits == [0.25, 1.0, 1.0, 4.0, 4.0, 16.0, 15.0, 30.0, 15.0]


def test_a_missing_socket_is_explained_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds = iter(range(4))

    async def sleep(seconds: float) -> None:
        if next(rounds) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError), caplog.at_level(logging.WARNING):
        asyncio.run(Stub(Plugin(), ME, socket_path="/nonexistent/nri.sock", sleep=sleep).run())
    said = [r.message for r in caplog.records if "is NRI enabled" in r.message]
    assert len(said) == 1


# -- launched -------------------------------------------------------------------------------------------------------


def test_a_launched_plugin_gets_its_config_and_ends_with_the_runtime() -> None:
    plugin = Recorder()
    with launched_pair() as (peer, fd):
        me = Identity(name="test", index="10", launched_fd=fd)
        with PluginThread(lambda: Stub(plugin, me).run()) as thread:
            peer.accept_registration()
            # NRI up to 0.6.1 never synchronizes launched plugins.
            peer.configure(config="a: 1\n", version="1.7.24", timeout_ms=0)
            assert not os.get_inheritable(fd)
            peer.call("CreateContainer", CREATE)
            assert plugin.next("create") == CONTAINER.id
            peer.close()
            assert "disconnected" in thread.result()
    assert plugin.config == "a: 1\n"


# -- unsolicited updates --------------------------------------------------------------------------------------------


class Updates(Recorder):
    stub: Stub
    inside: object = None

    async def start_container(self, pod: m.PodSandbox, container: m.Container) -> None:  # type: ignore[override]
        try:
            await self.stub.update_containers([])
        except UpdateRefused as error:
            self.inside = error


def updating(runtime: FakeRuntime) -> tuple[Updates, PluginThread]:
    plugin = Updates()
    plugin.stub = Stub(plugin, ME, socket_path=str(runtime.path), backoff=Backoff(first_s=0.01, most_s=0.05))
    return plugin, PluginThread(plugin.stub.run)


@pytest.mark.parametrize("version", ["", "v0.12.0"])
def test_updates_are_refused_where_they_can_freeze_the_runtime(runtime: FakeRuntime, version: str) -> None:
    plugin, thread = updating(runtime)
    with thread:
        peer = runtime.accept()
        peer.connect(version="2.3.4", nri_version=version)
        with pytest.raises(UpdateRefused, match="freeze"):
            thread.submit(plugin.stub.update_containers([m.ContainerUpdate(container_id="x")]))
        assert peer.call("CreateContainer", CREATE) == b""
        assert [size for conn, size in peer.frame_sizes if conn == 2][1:] == [], "something was sent"


def test_updates_go_out_on_newer_runtimes_and_never_inside_a_handler(runtime: FakeRuntime) -> None:
    from nri_warmup.ttrpc.envelope import render_error
    from nri_warmup.ttrpc.frames import RESPONSE, render_message

    plugin, thread = updating(runtime)
    with thread:
        peer = runtime.accept()
        peer.connect(nri_version="v0.12.3")
        peer.state_change(Event.START_CONTAINER, POD, CONTAINER)
        assert "inside a handler" in str(plugin.inside)

        def answer(error: bool) -> None:
            stream, call = peer.read_request()
            assert call.method == "UpdateContainers"
            request = m.UpdateContainersRequest.FromString(call.payload)
            assert [u.container_id for u in request.update] == ["x"]
            if error:
                peer.write(render_message(2, stream, RESPONSE, render_error(2, "update of some containers failed")))
            else:
                peer.reply(stream, m.UpdateContainersResponse(failed=request.update).SerializeToString())

        for error in (False, True):
            helper = threading.Thread(target=answer, args=(error,))
            helper.start()
            update = plugin.stub.update_containers([m.ContainerUpdate(container_id="x")])
            if error:
                with pytest.raises(CallFailed, match="some containers"):
                    thread.submit(update)
            else:
                assert [u.container_id for u in thread.submit(update)] == ["x"]
            helper.join(30)


# -- what is sent ---------------------------------------------------------------------------------------------------


def test_repeated_keys_are_dropped_before_they_conflict(runtime: FakeRuntime, caplog: pytest.LogCaptureFixture) -> None:
    plugin = Recorder()
    plugin.adjust = m.ContainerAdjustment(
        env=[m.KeyValue(key="A", value="1"), m.KeyValue(key="-A"), m.KeyValue(key="A", value="2")],
        mounts=[m.Mount(destination="/d", source="/one"), m.Mount(destination="/d", source="/two")],
        args=["new"],
    )
    with start(plugin, runtime):
        peer = runtime.accept()
        peer.connect(version="2.1.9")
        adjust = m.CreateContainerResponse.FromString(peer.call("CreateContainer", CREATE)).adjust
    assert [(e.key, e.value) for e in adjust.env] == [("-A", ""), ("A", "2")]
    assert [mount.source for mount in adjust.mounts] == ["/two"]
    text = "\n".join(record.message for record in caplog.records)
    assert "args needs NRI 0.10" in text and "env A" in text


def test_the_fake_reads_as_strictly_as_the_library(runtime: FakeRuntime) -> None:
    """The tests above mean something only if a wrong sender fails here."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(runtime.path))
        peer = runtime.accept()
        size = 5000
        message = size.to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\1\0" + b"x" * size
        sock.sendall((2).to_bytes(4, "big") + len(message).to_bytes(4, "big") + message)
        with pytest.raises(Exception, match="ENOMEM"):
            peer.read_request()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(runtime.path))
        peer = runtime.accept()
        with contextlib.suppress(OSError):
            for _ in range(300):
                sock.sendall(b"\0\0\0\1\0\0\0\x01x")
        assert "queue" in eventually(lambda: peer.why_closed)
