"""An OCI hook's state JSON and the bundle's config.json -> the same LifecycleEvent that NRI gives. Pure.

Of the state only ``id`` can be relied on. What differs between runtimes (tried with runc 1.1 and 1.3, crun 1.8 and
1.28, under Podman, containerd and CRI-O):

* ``pid`` is the host's in the host-side stages only; inside the container it is 1 (runc) or 0 (crun), poststop has
none; * ``status`` in createRuntime is ``creating`` (runc) or ``created`` (crun): not looked at; * ``root`` is crun's
alone and may be relative to the bundle; ``bundle`` was ``/`` in some versions of crun: then it is broken; * pod and
container names, and the pod's annotations, are annotations of the engine's own if they are there at all. Podman
  tells no names; containerd passes pod annotations on only where ``pod_annotations`` is set.

config.json is optional: without it, mounts, namespaces, arguments and the limit are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.model.lifecycle import (
    Container,
    ContainerState,
    EventKind,
    LifecycleEvent,
    Mount,
    Pairs,
    Pod,
    pairs,
)

FIRST_USABLE_PID = 2
"""1 and 0 are what runtimes give where the hook runs in the container's own pid namespace."""

_NAME = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_IMAGE = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName")
_POD_ID = ("io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID")
_POD_NAME = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
_POD_NAMESPACE = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace", "io.kubernetes.cri-o.Namespace")
_POD_UID = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
_HANDLER = ("io.containerd.cri.runtime-handler", "io.kubernetes.cri-o.RuntimeHandler")
_CRIO_LABELS = "io.kubernetes.cri-o.Labels"


@dataclass(frozen=True, slots=True, kw_only=True)
class OciState:
    """What a hook got on its stdin. ``pid`` 0: none that is usable on the host. Empty text: absent, or broken."""

    id: str
    pid: int = 0
    bundle: str = ""
    root: str = ""
    annotations: Pairs = ()


def parse_state(value: object) -> OciState:
    """``value`` is the state as JSON gives it. RemoteProtocolError where it is no state with an id."""
    if not isinstance(value, Mapping):
        raise RemoteProtocolError("the runtime's state is not a JSON object")
    container_id = value.get("id")
    if not isinstance(container_id, str) or not container_id or "/" in container_id or "\0" in container_id:
        raise RemoteProtocolError("the runtime's state has no usable container id")
    pid = value.get("pid")
    usable = isinstance(pid, int) and not isinstance(pid, bool) and pid >= FIRST_USABLE_PID
    bundle = _path(value.get("bundle"))
    return OciState(
        id=container_id,
        pid=pid if usable and isinstance(pid, int) else 0,
        bundle="" if bundle.rstrip("/") == "" else bundle,
        root=_text(value.get("root")),
        annotations=_pairs(value.get("annotations")),
    )


def rootfs_path(state: OciState, spec: object = None) -> str:
    """The container's rootfs as the hook sees it, absolute; empty where neither config.json nor the state tells."""
    declared = _text(_at(spec, "root", "path"))
    for candidate in (declared, state.root):
        if candidate.startswith("/"):
            return candidate
        if candidate and state.bundle:
            return f"{state.bundle.rstrip('/')}/{candidate}"
    return ""


def event(state: OciState, spec: object = None) -> LifecycleEvent:
    """The container about to start, as CREATE_RUNTIME. ``spec``: the loaded config.json, None where there is none."""
    known = dict(_pairs(_at(spec, "annotations"))) | dict(state.annotations)
    pod_id = _first(known, _POD_ID) or state.id
    pod = Pod(
        id=pod_id,
        name=_first(known, _POD_NAME),
        namespace=_first(known, _POD_NAMESPACE),
        uid=_first(known, _POD_UID),
        runtime_handler=_first(known, _HANDLER),
    )
    limit = _at(spec, "linux", "resources", "memory", "limit")
    container = Container(
        id=state.id,
        pod_id=pod_id,
        name=_first(known, _NAME),
        image=_first(known, _IMAGE),
        state=ContainerState.CREATED,
        labels=_json_pairs(known.get(_CRIO_LABELS, "")),
        annotations=pairs(known),
        args=_texts(_at(spec, "process", "args")),
        env=_texts(_at(spec, "process", "env")),
        mounts=_mounts(_at(spec, "mounts")),
        namespaces=_namespaces(_at(spec, "linux", "namespaces")),
        cgroups_path=_text(_at(spec, "linux", "cgroupsPath")),
        memory_limit_bytes=limit if isinstance(limit, int) and limit > 0 else None,
        pid=state.pid,
    )
    return LifecycleEvent(kind=EventKind.CREATE_RUNTIME, pod=pod, container=container)


# --- values of a shape that nobody promised ---------------------------------------------------------------------------


def _at(value: object, *keys: str) -> object:
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _text(value: object) -> str:
    return value if isinstance(value, str) and "\0" not in value else ""


def _path(value: object) -> str:
    text = _text(value)
    return text if text.startswith("/") else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _pairs(value: object) -> Pairs:
    if not isinstance(value, Mapping):
        return ()
    return pairs({k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, str)})


def _json_pairs(text: str) -> Pairs:
    try:
        return _pairs(json.loads(text)) if text else ()
    except (ValueError, RecursionError):
        return ()


def _first(known: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((known[key] for key in keys if known.get(key)), "")


def _mounts(value: object) -> tuple[Mount, ...]:
    found = []
    for item in value if isinstance(value, list) else ():
        destination = _text(_at(item, "destination"))
        if destination:
            mount = Mount(
                destination=destination,
                source=_text(_at(item, "source")),
                type=_text(_at(item, "type")),
                options=_texts(_at(item, "options")),
            )
            found.append(mount)
    return tuple(found)


def _namespaces(value: object) -> tuple[tuple[str, str], ...]:
    items = value if isinstance(value, list) else ()
    return tuple((kind, _text(_at(item, "path"))) for item in items if (kind := _text(_at(item, "type"))))
