"""Between the protocol's messages and our values. Loaded with the first event that has to be decoded."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.model.lifecycle import Container, ContainerState, EventKind, Mount, Pairs, Pod
from nri_warmup.model.plan import Adjustment
from nri_warmup.nri._pb import nri_pb2 as pb

_STATES = (
    ContainerState.UNKNOWN,
    ContainerState.CREATED,
    ContainerState.PAUSED,
    ContainerState.RUNNING,
    ContainerState.STOPPED,
)

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
        labels=tuple(sorted(message.labels.items())),
        annotations=tuple(sorted(message.annotations.items())),
        runtime_handler=message.runtime_handler,
        cgroup_parent=message.linux.cgroup_parent,
        pid=message.pid,
    )


def parse_container(message: pb.Container, kind: EventKind) -> Container:
    labels: Pairs = tuple(sorted(message.labels.items()))
    annotations: Pairs = tuple(sorted(message.annotations.items()))
    linux = message.linux
    memory = linux.resources.memory
    state = _STATES[message.state] if 0 <= message.state < len(_STATES) else ContainerState.UNKNOWN
    stale = kind in _PID_IS_STALE or state is ContainerState.STOPPED
    return Container(
        id=message.id,
        pod_id=message.pod_sandbox_id,
        name=message.name or _first(message.labels, message.annotations, _NAME_KEY),
        image=message.image.name or next((message.annotations[k] for k in _IMAGE_KEYS if k in message.annotations), ""),
        image_digest=message.image.digest,
        state=state,
        labels=labels,
        annotations=annotations,
        args=tuple(message.args),
        env=tuple(message.env),
        mounts=tuple(
            [
                Mount(destination=m.destination, source=m.source, type=m.type, options=tuple(m.options))
                for m in message.mounts
            ]
        ),
        namespaces=tuple([(n.type, n.path) for n in linux.namespaces]),
        cgroups_path=linux.cgroups_path,
        memory_limit_bytes=memory.limit.value if memory.HasField("limit") and memory.limit.value > 0 else None,
        pid=0 if stale else message.pid,
    )


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


def render_adjustment(adjustment: Adjustment) -> pb.ContainerAdjustment | None:
    """None for an empty one: an empty reply claims nothing and cannot conflict."""
    if adjustment.is_empty:
        return None
    message = pb.ContainerAdjustment(
        annotations=dict(adjustment.annotations),
        mounts=[
            pb.Mount(destination=m.destination, source=m.source, type=m.type, options=m.options)
            for m in adjustment.mounts
        ],
        env=[pb.KeyValue(key=key, value=value) for key, value in adjustment.env],
        rlimits=[pb.POSIXRlimit(type=r.type, hard=r.hard, soft=r.soft) for r in adjustment.rlimits],
    )
    for hook in adjustment.hooks:
        entry = getattr(message.hooks, _HOOK_STAGES[hook.stage]).add(path=hook.path, args=hook.args, env=hook.env)
        if hook.timeout_s is not None:
            entry.timeout.value = hook.timeout_s
    return message


def _first(labels: object, annotations: object, key: str) -> str:
    for mapping in (labels, annotations):
        if key in mapping:  # type: ignore[operator]
            return str(mapping[key])  # type: ignore[index]
    return ""
