"""Between the protocol's messages and our values. Loaded with the first event that has to be decoded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.model.lifecycle import Container, ContainerState, EventKind, LifecycleEvent, Mount, Pairs, Pod
from nri_warmup.model.plan import Adjustment
from nri_warmup.nri._pb import nri_pb2 as pb
from nri_warmup.nri.adjustment import make_safe
from nri_warmup.nri.versions import Version

_STATES = (
    ContainerState.UNKNOWN,
    ContainerState.CREATED,
    ContainerState.PAUSED,
    ContainerState.RUNNING,
    ContainerState.STOPPED,
)

POD_KINDS = frozenset({EventKind.RUN_POD_SANDBOX, EventKind.STOP_POD_SANDBOX, EventKind.REMOVE_POD_SANDBOX})

# By the time of these the process is gone and its number may be another's.
_PID_IS_STALE = frozenset({EventKind.STOP_CONTAINER, EventKind.REMOVE_CONTAINER})

# Some versions of CRI-O leave the name out of CreateContainer, and no runtime before NRI 0.12.2 names the image.
_NAME_KEY = "io.kubernetes.container.name"
_IMAGE_KEYS = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName", "io.kubernetes.cri-o.Image")

_HOOK_STAGES = {
    "prestart": "prestart",
    "createRuntime": "create_runtime",
    "createContainer": "create_container",
    "startContainer": "start_container",
    "poststart": "poststart",
    "poststop": "poststop",
}


def parse_pod(message: pb.PodSandbox) -> Pod:
    return Pod(
        id=message.id,
        name=message.name,
        namespace=message.namespace,
        uid=message.uid,
        labels=_pairs(message.labels),
        annotations=_pairs(message.annotations),
        runtime_handler=message.runtime_handler,
        cgroup_parent=message.linux.cgroup_parent,
        pid=message.pid,
    )


def parse_container(message: pb.Container, kind: EventKind) -> Container:
    """What decisions look at. Environment, arguments and labels stay behind: on a busy node they are most of the work,
    and nothing is decided by them."""
    annotations = message.annotations
    linux = message.linux
    limit = linux.resources.memory.limit.value
    image = message.image
    state, pid = _state_and_pid(message, kind)
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name or message.labels.get(_NAME_KEY, "") or annotations.get(_NAME_KEY, ""),
        image=image.name or _image_name(annotations),
        image_digest=image.digest,
        state=state,
        annotations=_pairs(annotations),
        mounts=tuple(
            [
                # Without their options: no decision looks at them, and reading them is a third of the price.
                Mount(destination=m.destination, source=m.source, type=m.type)
                for m in message.mounts
            ]
        ),
        namespaces=tuple([(n.type, n.path) for n in linux.namespaces]),
        cgroups_path=linux.cgroups_path,
        memory_limit_bytes=limit if limit > 0 else None,
        pid=pid,
    )


def _state_and_pid(message: pb.Container, kind: EventKind) -> tuple[ContainerState, int]:
    state = _STATES[message.state] if 0 <= message.state < len(_STATES) else ContainerState.UNKNOWN
    return state, 0 if kind in _PID_IS_STALE or state is ContainerState.STOPPED else message.pid


def _pairs(mapping: Mapping[str, str]) -> Pairs:
    # Not items(): protobuf's maps take theirs from collections.abc, and those are slow.
    return tuple([(key, mapping[key]) for key in sorted(mapping)]) if mapping else ()


def _image_name(annotations: Mapping[str, str]) -> str:
    for key in _IMAGE_KEYS:
        if key in annotations:
            return annotations[key]
    return ""


def parse_event(kind: EventKind, method: str, payload: bytes, *, known: bool = False) -> LifecycleEvent:
    """The event of a request, in either form. Raises RemoteProtocolError.

    Of what is ``known`` already only its id, state and pid are taken.
    """
    try:
        message = _request_type(method).FromString(payload)
    except DecodeError as error:
        raise RemoteProtocolError(f"{method}: {error}") from None
    if known:
        pod = Pod(id=message.pod.id)
        if kind in POD_KINDS:
            return LifecycleEvent(kind=kind, pod=pod)
        container = message.container
        state, pid = _state_and_pid(container, kind)
        brief = Container(id=container.id, pod_id=container.pod_sandbox_id, state=state, pid=pid)
        return LifecycleEvent(kind=kind, pod=pod, container=brief)
    pod = parse_pod(message.pod)
    if kind in POD_KINDS:
        return LifecycleEvent(kind=kind, pod=pod)
    return LifecycleEvent(kind=kind, pod=pod, container=parse_container(message.container, kind))


def _request_type(method: str) -> Any:
    found = _REQUEST_TYPES.get(method)
    if found is None:
        name = "StateChangeEvent" if method == "StateChange" else f"{method}Request"
        found = _REQUEST_TYPES[method] = getattr(pb, name)
    return found


_REQUEST_TYPES: dict[str, Any] = {}


def parse_listed(pod: bytes, container: bytes) -> tuple[Pod, Container]:
    """One pair of Synchronize. A pod that was not listed is known by its id alone. Raises RemoteProtocolError."""
    try:
        pod_message = pb.PodSandbox.FromString(pod)
        container_message = pb.Container.FromString(container)
    except DecodeError as error:
        raise RemoteProtocolError(f"Synchronize: {error}") from None
    if not pod:
        pod_message.id = container_message.pod_sandbox_id
    return parse_pod(pod_message), parse_container(container_message, EventKind.SYNCHRONIZE)


@lru_cache(maxsize=64)
def render_create_reply(adjustment: Adjustment, nri_version: Version) -> bytes:
    """The CreateContainerResponse that asks for this, with every key once and what is too new for the runtime reported.

    Empty bytes for an empty adjustment: that claims nothing and cannot conflict with another plugin. Kept,
    since without a hook all containers of a profile are answered alike.
    """
    if adjustment.is_empty:
        return b""
    message = pb.CreateContainerResponse()
    adjust = message.adjust
    for key, value in adjustment.annotations:
        adjust.annotations[key] = value
    for key, value in adjustment.env:
        adjust.env.add(key=key, value=value)
    for m in adjustment.mounts:
        adjust.mounts.add(destination=m.destination, source=m.source, type=m.type, options=m.options)
    for r in adjustment.rlimits:
        adjust.rlimits.add(type=r.type, hard=r.hard, soft=r.soft)
    for hook in adjustment.hooks:
        entry = getattr(adjust.hooks, _HOOK_STAGES[hook.stage]).add(path=hook.path, args=hook.args, env=hook.env)
        if hook.timeout_s is not None:
            entry.timeout.value = hook.timeout_s
    if adjustment.env or adjustment.mounts or adjustment.rlimits:
        # Annotations are a map and hooks accumulate: neither can repeat or be too new.
        make_safe(adjust, nri_version)
    return message.SerializeToString()
