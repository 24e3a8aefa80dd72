"""The daemon's client against orders of events, stale pids and parts that no library sends on demand."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.model.lifecycle import Container, EventKind, LifecycleEvent, Pod, Runtime
from nri_warmup.model.plan import Adjustment
from nri_warmup.nri import messages as m
from nri_warmup.nri.client import NriClient
from nri_warmup.nri.events import Event
from nri_warmup.nri.stub import Backoff
from tests.component.fake_runtime import FakeRuntime, launched_pair, make_container, make_pod
from tests.component.plugin_thread import PluginThread, eventually

TOKEN = b"files.nri-warmup.dev"
ASKS = {TOKEN.decode(): "/models/*"}


class Daemon:
    """Stands where the daemon's pipeline stands; keeps what it is told."""

    def __init__(self) -> None:
        self.tokens: tuple[frozenset[bytes], ...] = (frozenset({TOKEN}),)
        self.told: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.tracked: set[str] = set()
        self.tracked_pods: set[str] = set()
        self.hold: Callable[[], Awaitable[Any]] | None = None
        self.skipped: list[EventKind] = []
        self.broken = False

    def interest(self) -> tuple[frozenset[bytes], ...]:
        return self.tokens

    def is_tracked(self, container_id: str) -> bool:
        return container_id in self.tracked

    def is_tracked_pod(self, pod_id: str) -> bool:
        return pod_id in self.tracked_pods

    def on_config(self, text: str) -> None:
        self.told.put(("config", text))

    def on_connected(self, runtime: Runtime) -> None:
        self.told.put(("connected", runtime))

    def on_disconnected(self, reason: str) -> None:
        self.told.put(("disconnected", reason))

    def on_synchronize(self, containers: Sequence[tuple[Pod, Container]], totals: tuple[int, int]) -> None:
        self.told.put(("synchronize", (list(containers), totals)))

    def on_create(self, event: LifecycleEvent) -> Adjustment:
        assert event.container is not None
        if self.broken:
            raise ValueError("broken")
        self.tracked.add(event.container.id)
        self.tracked_pods.add(event.pod.id)
        self.told.put(("create", event))
        return Adjustment(annotations=(("nri-warmup.dev/plan", "model"),), env=(("A", "1"), ("A", "2")))

    def on_event(self, event: LifecycleEvent) -> Awaitable[Any] | None:
        if self.broken:
            raise ValueError("broken")
        self.told.put(("event", event))
        return self.hold() if self.hold is not None else None

    def on_failed(self, kind: EventKind) -> None:
        pass

    def on_skipped(self, kind: EventKind) -> None:
        self.skipped.append(kind)

    def next(self, wanted: str) -> Any:
        while True:
            name, value = self.told.get(timeout=30)
            if name == wanted:
                return value


class Running:
    def __init__(self, daemon: Daemon, **options: Any) -> None:
        self.daemon = daemon
        self.client: NriClient | None = None
        self._options = {"backoff": Backoff(first_s=0.01, most_s=0.05), **options}
        self.thread = PluginThread(self._main)

    async def _main(self) -> None:
        self.client = NriClient(self.daemon, **self._options)
        await self.client.run()

    @property
    def status(self) -> Any:
        assert self.client is not None
        return self.client.status


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(tmp_path / "nri.sock") as fake:
        yield fake


@pytest.fixture
def running(runtime: FakeRuntime) -> Iterator[Running]:
    run = Running(Daemon(), socket_path=str(runtime.path))
    with run.thread:
        yield run


def create(pod: m.PodSandbox, container: m.Container) -> m.CreateContainerRequest:
    return m.CreateContainerRequest(pod=pod, container=container)


def test_only_what_may_concern_us_is_decoded(runtime: FakeRuntime, running: Running) -> None:
    daemon = running.daemon
    plain, asking = make_pod("plain"), make_pod("asking", ASKS)
    peer = runtime.accept()
    peer.connect(nri_version="v0.12.3")
    assert peer.call("CreateContainer", create(plain, make_container(plain))) == b""
    for method, event in (("StartContainer", m.StartContainerRequest), ("StopContainer", m.StopContainerRequest)):
        assert peer.call(method, event(pod=plain, container=make_container(plain, pid=5))) == b""
    assert peer.call("StopPodSandbox", m.StopPodSandboxRequest(pod=plain)) == b""
    assert daemon.skipped == [
        EventKind.CREATE_CONTAINER,
        EventKind.START_CONTAINER,
        EventKind.STOP_CONTAINER,
        EventKind.STOP_POD_SANDBOX,
    ]
    reply = m.CreateContainerResponse.FromString(peer.call("CreateContainer", create(asking, make_container(asking))))
    assert dict(reply.adjust.annotations) == {"nri-warmup.dev/plan": "model"}
    assert [(e.key, e.value) for e in reply.adjust.env] == [("A", "2")]
    assert daemon.next("create").pod.annotations == tuple(ASKS.items())
    assert dict(running.status.events)[EventKind.CREATE_CONTAINER] == 2
    assert running.status.state == "registered" and running.status.runtime.nri_version == (0, 12)


@pytest.mark.parametrize("dedicated", [False, True], ids=["StateChange", "own-method"])
def test_later_events_of_a_tracked_container_need_not_carry_what_picked_it(
    runtime: FakeRuntime, running: Running, dedicated: bool
) -> None:
    """The operator may have changed selectors meanwhile; what was planned is still followed to its end."""
    daemon = running.daemon
    pod = make_pod("asking", ASKS)
    container = make_container(pod, pid=42)
    peer = runtime.accept()
    peer.connect(nri_version="0.12.0" if dedicated else "")
    peer.call("CreateContainer", create(pod, container))
    daemon.tokens = ()
    for event in (Event.START_CONTAINER, Event.STOP_CONTAINER, Event.REMOVE_CONTAINER):
        if dedicated or event is Event.STOP_CONTAINER:
            request = getattr(m, f"{event.method_name}Request")(pod=pod, container=container)
            assert peer.call(event.method_name, request) == b""
        else:
            assert peer.state_change(event, pod, container) == b""
        told = daemon.next("event")
        assert told.kind.name == event.name and told.container.id == container.id
        assert told.container.pid == (42 if event is Event.START_CONTAINER else 0)
    assert peer.state_change(Event.STOP_POD_SANDBOX, pod) == b""
    told = daemon.next("event")
    assert (told.kind, told.pod.id, told.container) == (EventKind.STOP_POD_SANDBOX, pod.id, None)


def test_crio_brings_the_pid_early_and_stale_ones_late(runtime: FakeRuntime, running: Running) -> None:
    daemon = running.daemon
    pod = make_pod("asking", ASKS)
    peer = runtime.accept()
    peer.connect(name="cri-o", version="1.36.0", timeout_ms=2000)
    assert daemon.next("connected").nri_version == (0, 11)
    unnamed = make_container(pod)
    unnamed.name = ""
    unnamed.labels["io.kubernetes.container.name"] = "server"
    unnamed.annotations["io.kubernetes.cri-o.ImageName"] = "registry/image:1"
    peer.call("CreateContainer", create(pod, unnamed))
    created = daemon.next("create").container
    assert (created.name, created.image, created.pid) == ("server", "registry/image:1", 0)
    alive = make_container(pod, pid=42, state=m.CONTAINER_CREATED)
    stopped = make_container(pod, pid=42, state=m.CONTAINER_STOPPED)
    pids = []
    for event, container in (
        (Event.POST_CREATE_CONTAINER, alive),
        (Event.START_CONTAINER, alive),
        (Event.REMOVE_CONTAINER, stopped),
    ):
        peer.state_change(event, pod, container)
        pids.append(daemon.next("event").container.pid)
    assert pids == [42, 42, 0]


def test_a_start_without_a_create_is_delivered(runtime: FakeRuntime, running: Running) -> None:
    """Around registration a container can be in neither Synchronize nor CreateContainer."""
    pod = make_pod("asking", ASKS)
    peer = runtime.accept()
    peer.connect()
    peer.state_change(Event.START_CONTAINER, pod, make_container(pod, pid=7))
    assert running.daemon.next("event").container.pid == 7


def test_synchronize_is_sifted_by_pod_and_container_together(runtime: FakeRuntime, running: Running) -> None:
    """In parts, and with a container that comes before its pod."""
    daemon = running.daemon
    daemon.tokens = (frozenset({b"team-a", b"serve"}), frozenset({TOKEN}))
    first, second = make_pod("one", {"team": "team-a"}), make_pod("two", ASKS)
    third, fourth = make_pod("three", {"team": "team-a"}), make_pod("four", {"team": "team-b"})
    peer = runtime.accept()
    peer.accept_registration()
    peer.configure()
    split = [
        ([], [make_container(first, "serve"), make_container(first, "sidecar")]),
        ([first, fourth], [make_container(second, "any", pid=9, state=m.CONTAINER_RUNNING)]),
        ([second, third], [make_container(fourth, "serve"), make_container(third, "other")]),
    ]
    for index, (pods, containers) in enumerate(split):
        more = index < len(split) - 1
        assert peer.synchronize(pods, containers, more=more).more is more
    found, totals = daemon.next("synchronize")
    assert totals == (4, 5)
    assert [(pod.name, container.id) for pod, container in found] == [("one", "one-serve"), ("two", "two-any")]
    assert found[1][1].pid == 9
    eventually(lambda: running.status.state == "registered")


def test_a_container_whose_pod_is_not_listed(runtime: FakeRuntime, running: Running) -> None:
    pod = make_pod("lost")
    peer = runtime.accept()
    peer.accept_registration()
    peer.configure()
    peer.synchronize([], [make_container(pod, annotations=ASKS)])
    found, totals = running.daemon.next("synchronize")
    assert totals == (0, 1) and found[0][0].id == pod.id


def test_an_empty_conjunction_matches_everything(runtime: FakeRuntime, running: Running) -> None:
    running.daemon.tokens = (frozenset(),)
    pod = make_pod("plain")
    peer = runtime.accept()
    peer.accept_registration()
    peer.configure()
    peer.synchronize([pod], [make_container(pod)])
    assert len(running.daemon.next("synchronize")[0]) == 1
    peer.call("CreateContainer", create(pod, make_container(pod)))
    running.daemon.next("create")


def test_sync_is_told_before_any_later_event(runtime: FakeRuntime, running: Running) -> None:
    """Even when the event is in the socket together with the last part."""
    pod = make_pod("asking", ASKS)
    peer = runtime.accept()
    peer.accept_registration()
    peer.configure()
    sync = peer.send_call("Synchronize", m.SynchronizeRequest(pods=[pod], containers=[make_container(pod)]))
    late = peer.send_call("CreateContainer", create(pod, make_container(pod, "late")))
    peer.read_reply(sync)
    peer.read_reply(late)
    order = [name for name, _ in list(running.daemon.told.queue) if name in ("synchronize", "create")]
    assert order == ["synchronize", "create"]


def test_an_awaitable_holds_the_reply_and_only_until_the_deadline(runtime: FakeRuntime, running: Running) -> None:
    daemon = running.daemon
    gates: queue.Queue[asyncio.Event] = queue.Queue()
    finished: queue.Queue[str] = queue.Queue()

    async def gate() -> str:
        event = asyncio.Event()
        gates.put(event)
        await event.wait()
        finished.put("finished")
        return "an outcome, not a reply"

    daemon.hold = gate
    pod = make_pod("asking", ASKS)
    started = m.StateChangeEvent(event=6, pod=pod, container=make_container(pod, pid=3))
    peer = runtime.accept()
    peer.connect(timeout_ms=30_000)
    stream = peer.send_call("StateChange", started)
    event = gates.get(timeout=30)
    with pytest.raises(queue.Empty):
        peer.read_reply(stream, wait_s=0.05)
    running.thread._loop.call_soon_threadsafe(event.set)
    assert peer.read_reply(stream) == b""
    # With 300 ms for the call the runtime is let go, and what was awaited goes on.
    assert peer.call("StateChange", started, timeout_ns=300_000_000) == b""
    finished.get(timeout=30)
    assert finished.empty()
    running.thread._loop.call_soon_threadsafe(gates.get(timeout=30).set)
    finished.get(timeout=30)


def test_a_broken_daemon_never_fails_a_container(runtime: FakeRuntime, running: Running) -> None:
    pod = make_pod("asking", ASKS)
    peer = runtime.accept()
    peer.connect()
    running.daemon.broken = True
    assert peer.call("CreateContainer", create(pod, make_container(pod))) == b""
    assert peer.state_change(Event.START_CONTAINER, pod, make_container(pod, pid=3)) == b""
    assert running.status.handler_errors == 2
    # So does an event that is no protobuf past the bytes that matched.
    assert peer.call("CreateContainer", b"\x0a\x7f" + TOKEN) == b""
    assert running.status.handler_errors == 3
    running.daemon.broken = False
    assert peer.call("CreateContainer", create(pod, make_container(pod))) != b""


def test_status_follows_the_connection(runtime: FakeRuntime, running: Running) -> None:
    peer = runtime.accept()
    peer.connect()
    eventually(lambda: running.status.state == "registered")
    peer.close()
    running.daemon.next("disconnected")
    eventually(lambda: running.status.disconnects == 1)
    assert "closed the connection" in running.status.last_error
    runtime.accept().connect()
    eventually(lambda: running.status.state == "registered")


def test_a_large_synchronize_is_answered_from_its_bytes(runtime: FakeRuntime, running: Running) -> None:
    """3000 containers of 3 KB, one of ours: one is decoded."""
    pods = [make_pod(f"p{i}", ASKS if i == 1234 else None) for i in range(3000)]
    containers = [make_container(pod, env=["X=" + "x" * 3000]) for pod in pods]
    peer = runtime.accept()
    peer.accept_registration()
    peer.configure(version="1.7.24", timeout_ms=0)
    peer.synchronize(pods, containers)
    found, totals = running.daemon.next("synchronize")
    assert totals == (3000, 3000) and [pod.name for pod, _ in found] == ["p1234"]


def test_launched_on_an_old_runtime_it_is_ready_without_synchronize() -> None:
    with launched_pair() as (peer, fd):
        run = Running(Daemon(), launched_fd=fd)
        with run.thread:
            peer.accept_registration()
            peer.configure(config="profiles: []\n", version="1.7.24~ds1", timeout_ms=0)
            assert run.daemon.next("config") == "profiles: []\n"
            eventually(lambda: run.status.state == "registered")
            peer.close()
            assert run.thread.result() is None
            assert run.status.state == "disconnected"
