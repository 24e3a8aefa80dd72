"""What a runtime tells us of a pod and a container, in one form for NRI and for OCI hooks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

Pairs = tuple[tuple[str, str], ...]
"""A string map as sorted pairs: hashable, ordered, and nobody can change it."""


def pairs(mapping: dict[str, str]) -> Pairs:
    return tuple(sorted(mapping.items()))


def lookup(items: Pairs, key: str) -> str | None:
    for k, v in items:
        if k == key:
            return v
    return None


class EventKind(Enum):
    """The lifecycle events of NRI (api.proto ``Event``); OCI hooks give CREATE_RUNTIME."""

    SYNCHRONIZE = "synchronize"
    RUN_POD_SANDBOX = "run-pod-sandbox"
    STOP_POD_SANDBOX = "stop-pod-sandbox"
    REMOVE_POD_SANDBOX = "remove-pod-sandbox"
    CREATE_CONTAINER = "create-container"
    POST_CREATE_CONTAINER = "post-create-container"
    START_CONTAINER = "start-container"
    POST_START_CONTAINER = "post-start-container"
    UPDATE_CONTAINER = "update-container"
    POST_UPDATE_CONTAINER = "post-update-container"
    STOP_CONTAINER = "stop-container"
    REMOVE_CONTAINER = "remove-container"
    CREATE_RUNTIME = "create-runtime"


class ContainerState(Enum):
    UNKNOWN = "unknown"
    CREATED = "created"
    PAUSED = "paused"
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    destination: str
    source: str = ""
    type: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    id: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Pairs = ()
    annotations: Pairs = ()
    runtime_handler: str = ""
    cgroup_parent: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container. ``pid`` is the host pid of its init process, 0 where the event does not carry a usable one."""

    id: str
    pod_id: str = ""
    name: str = ""
    image: str = ""
    image_digest: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    labels: Pairs = ()
    annotations: Pairs = ()
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = field(default=(), repr=False)
    mounts: tuple[Mount, ...] = ()
    namespaces: tuple[tuple[str, str], ...] = ()
    """(type, path) as in the OCI spec: an empty path is a namespace of its own, an absent type is the host's."""
    cgroups_path: str = ""
    memory_limit_bytes: int | None = None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Who is on the other side. ``nri_version`` is what we infer (facts of the handshake), (0, 0) for OCI hooks."""

    name: str = ""
    version: str = ""
    nri_version: tuple[int, int] = (0, 0)
    request_timeout_s: float = 2.0
    pid: int = 0
    """The runtime's own process, told by the kernel (SO_PEERCRED); 0 where it is in no pid namespace of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleEvent:
    kind: EventKind
    pod: Pod
    container: Container | None = None
