"""Between protobuf messages and model values, and what is found in bytes without decoding."""

from __future__ import annotations

import pytest

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.model.lifecycle import ContainerState, EventKind, Mount
from nri_warmup.model.plan import Adjustment, Hook, Rlimit
from nri_warmup.nri import messages as m
from nri_warmup.nri.events import METHODS, Event, mask_of
from nri_warmup.nri.scan import SyncSieve, event_number, id_inside, matches
from nri_warmup.nri.translate import parse_event, parse_listed, render_create_reply

POD = m.PodSandbox(
    id="p",
    name="pod",
    uid="u",
    namespace="ns",
    labels={"b": "2", "a": "1"},
    annotations={"x": "y"},
    runtime_handler="kata",
    linux=m.LinuxPodSandbox(cgroup_parent="/kubepods"),
    pid=5,
)
CONTAINER = m.Container(
    id="c",
    pod_sandbox_id="p",
    name="server",
    state=m.CONTAINER_RUNNING,
    labels={"l": "1"},
    annotations={"io.kubernetes.cri.image-name": "image:1"},
    args=["/bin/server", "-v"],
    env=["A=1"],
    mounts=[m.Mount(destination="/d", source="/s", type="bind", options=["ro", "rbind"])],
    linux=m.LinuxContainer(
        cgroups_path="slice:cri-containerd:c",
        namespaces=[m.LinuxNamespace(type="pid"), m.LinuxNamespace(type="ipc", path="/proc/5/ns/ipc")],
        resources=m.LinuxResources(memory=m.LinuxMemory(limit=m.OptionalInt64(value=1 << 30))),
    ),
    pid=77,
)


def test_of_what_is_known_only_the_state_is_taken() -> None:
    payload = m.StartContainerRequest(pod=POD, container=CONTAINER).SerializeToString()
    event = parse_event(EventKind.START_CONTAINER, "StartContainer", payload, known=True)
    assert event.container is not None and event.pod.id == "p" and event.pod.labels == ()
    assert (event.container.id, event.container.pid, event.container.mounts) == ("c", 77, ())
    stopped = parse_event(EventKind.STOP_CONTAINER, "StopContainer", payload, known=True)
    assert stopped.container is not None and stopped.container.pid == 0
    payload = m.StopPodSandboxRequest(pod=POD).SerializeToString()
    assert parse_event(EventKind.STOP_POD_SANDBOX, "StopPodSandbox", payload, known=True).pod.id == "p"


@pytest.mark.parametrize("state_change", [False, True])
def test_every_field_that_we_use_arrives(state_change: bool) -> None:
    if state_change:
        payload = m.StateChangeEvent(event=6, pod=POD, container=CONTAINER).SerializeToString()
        event = parse_event(EventKind.START_CONTAINER, "StateChange", payload)
    else:
        payload = m.StartContainerRequest(pod=POD, container=CONTAINER).SerializeToString()
        event = parse_event(EventKind.START_CONTAINER, "StartContainer", payload)
    pod, container = event.pod, event.container
    assert container is not None
    assert (pod.id, pod.name, pod.uid, pod.namespace, pod.runtime_handler, pod.cgroup_parent, pod.pid) == (
        "p", "pod", "u", "ns", "kata", "/kubepods", 5,
    )  # fmt: skip
    assert pod.labels == (("a", "1"), ("b", "2")) and pod.annotations == (("x", "y"),)
    assert (container.id, container.pod_id, container.name, container.image) == ("c", "p", "server", "image:1")
    assert container.state is ContainerState.RUNNING and container.pid == 77
    assert container.args == container.env == container.labels == ()  # nothing is decided by them
    assert container.mounts == (Mount(destination="/d", source="/s", type="bind"),)
    assert container.namespaces == (("pid", ""), ("ipc", "/proc/5/ns/ipc"))
    assert container.cgroups_path == "slice:cri-containerd:c" and container.memory_limit_bytes == 1 << 30


@pytest.mark.parametrize(
    ("kind", "state", "pid"),
    [
        (EventKind.START_CONTAINER, m.CONTAINER_CREATED, 77),
        (EventKind.STOP_CONTAINER, m.CONTAINER_RUNNING, 0),
        (EventKind.REMOVE_CONTAINER, m.CONTAINER_UNKNOWN, 0),
        (EventKind.SYNCHRONIZE, m.CONTAINER_STOPPED, 0),
        (EventKind.SYNCHRONIZE, m.CONTAINER_RUNNING, 77),
        (EventKind.START_CONTAINER, 99, 77),
    ],
)
def test_a_pid_that_may_be_anothers_is_not_handed_on(kind: EventKind, state: int, pid: int) -> None:
    container = m.Container(id="c", pid=77, state=state)  # type: ignore[arg-type]
    method = "StartContainer"
    event = parse_event(kind, method, m.StartContainerRequest(pod=POD, container=container).SerializeToString())
    assert event.container is not None and event.container.pid == pid


def test_an_image_is_named_by_the_newest_field() -> None:
    container = m.Container(id="c", image=m.Image(name="i", digest="sha256:1"))
    _, parsed = parse_listed(b"", container.SerializeToString())
    assert (parsed.image, parsed.image_digest, parsed.memory_limit_bytes) == ("i", "sha256:1", None)


def test_what_is_no_protobuf_is_the_other_sides_fault() -> None:
    with pytest.raises(RemoteProtocolError):
        parse_event(EventKind.CREATE_CONTAINER, "CreateContainer", b"\x0a\xff")
    with pytest.raises(RemoteProtocolError):
        parse_listed(b"", b"\x0a\xff")


def test_an_adjustment_with_everything() -> None:
    adjustment = Adjustment(
        annotations=(("a", "1"),),
        mounts=(Mount(destination="/d", source="/s", type="bind", options=("ro",)),),
        env=(("E", "1"),),
        hooks=(
            Hook(stage="createRuntime", path="/hook", args=("hook", "--id"), env=("PATH=/bin",), timeout_s=7),
            Hook(stage="poststop", path="/other"),
        ),
        rlimits=(Rlimit(type="RLIMIT_MEMLOCK", soft=1, hard=2),),
    )
    adjust = m.CreateContainerResponse.FromString(render_create_reply(adjustment, (0, 12, 0))).adjust
    assert dict(adjust.annotations) == {"a": "1"}
    assert adjust.mounts[0] == m.Mount(destination="/d", source="/s", type="bind", options=["ro"])
    assert adjust.env[0] == m.KeyValue(key="E", value="1")
    assert adjust.hooks.create_runtime[0] == m.Hook(
        path="/hook", args=["hook", "--id"], env=["PATH=/bin"], timeout=m.OptionalInt(value=7)
    )
    assert not adjust.hooks.poststop[0].HasField("timeout")
    assert adjust.rlimits[0] == m.POSIXRlimit(type="RLIMIT_MEMLOCK", hard=2, soft=1)


def test_an_empty_adjustment_claims_nothing() -> None:
    assert render_create_reply(Adjustment(), (0, 12, 0)) == b""


# -- bytes ----------------------------------------------------------------------------------------------------------


def test_interest_is_a_disjunction_of_conjunctions() -> None:
    both, other = frozenset({b"one", b"two"}), frozenset({b"three"})
    assert matches((both, other), b"..two..one..")
    assert matches((both, other), b"three")
    assert not matches((both, other), b"..one..")
    assert matches((frozenset(),), b"")
    assert not matches((), b"one two three")


@pytest.mark.parametrize("event", [e for e in Event if e])
def test_numbers_and_ids_are_found_in_the_bytes(event: Event) -> None:
    payload = m.StateChangeEvent(event=event, pod=POD, container=CONTAINER).SerializeToString()  # type: ignore[arg-type]
    assert event_number(payload) == event
    assert (id_inside(payload, 2), id_inside(payload, 3)) == ("p", "c")
    assert METHODS[event.method_name] is event


def test_what_is_not_there_is_empty() -> None:
    assert event_number(b"") == 0
    assert id_inside(m.StateChangeEvent(pod=POD).SerializeToString(), 3) == ""


def test_a_mask_is_never_zero() -> None:
    assert mask_of(frozenset()) != 0
    assert mask_of({Event.CREATE_CONTAINER, Event.START_CONTAINER}) == 0x28


def test_the_sieve_agrees_with_decoding() -> None:
    """Whatever the parts: what it keeps is what a search of pod and container together would keep."""
    pods = [m.PodSandbox(id=f"p{i}", name="match" if i % 3 == 0 else "no") for i in range(30)]
    containers = [m.Container(id=f"c{i}", pod_sandbox_id=f"p{i}", name="also" if i % 2 else "no") for i in range(30)]
    interest = (frozenset({b"match", b"also"}),)
    wanted = [f"c{i}" for i in range(30) if i % 3 == 0 and i % 2]
    for order in (0, 1):
        sieve = SyncSieve()
        parts = [m.SynchronizeRequest(pods=pods, more=True), m.SynchronizeRequest(containers=containers, more=True)]
        for part in parts if not order else reversed(parts):
            assert sieve.add(part.SerializeToString())
        assert not sieve.add(b"")
        assert [m.Container.FromString(c).id for _, c in sieve.sift(interest)] == wanted
        assert sieve.totals == (30, 30)
