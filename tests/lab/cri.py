"""A client for the part of the Kubernetes CRI that the tests need, in kubelet's place.

Pods use the host's network unless they ask for a user namespace (then they need a network of their own: Kubernetes'
own rule). Calls block; from several threads they run side by side.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tests.lab._pb import cri_pb2 as pb
from tests.lab.leftovers import remove_cgroups

CALL_TIMEOUT_S = 120.0
PATIENCE = float(os.environ.get("NRI_WARMUP_PATIENCE", "1"))
"""What time limits are multiplied by, where everything is slower: under emulation."""


class Timeout(Exception):
    """Something that was waited for did not come; the message holds what was seen instead."""


def until(what: str, ask: Any, timeout_s: float = 60.0, step_s: float = 0.02) -> Any:
    """Ask until the answer is true and return it; `ask` may return (answer, what it saw) for the message."""
    timeout_s *= PATIENCE
    end = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > end:
            raise Timeout(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A mount: a host path, or the content of an image (``image``, CRI image volumes)."""

    target: str
    source: str = ""
    image: str = ""
    readonly: bool = True
    mapped: bool = True
    """Whether a user namespace sees the files' owners through its id mapping (containerd 1.7 cannot do that)."""

    def message(self, identity: Sequence[pb.IDMapping]) -> pb.Mount:
        mount = pb.Mount(container_path=self.target, host_path=self.source, readonly=self.readonly)
        if self.image:
            mount.image.image = mount.image.user_specified_image = self.image
        elif identity and self.mapped:
            mount.uidMappings.extend(identity)
            mount.gidMappings.extend(identity)
        return mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    id: str
    name: str
    config: pb.PodSandboxConfig = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    id: str
    name: str
    pod: Pod
    log: Path


class Cri:
    """``cgroup_parent``: below it each pod gets a cgroup of its own; a name in ``.slice`` is for systemd's driver."""

    def __init__(self, socket: Path | str, *, logs: Path, cgroup_parent: str) -> None:
        self._channel = grpc.insecure_channel(
            f"unix://{socket}",
            options=[("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20)],
        )
        self._logs = logs
        self._cgroup_parent = cgroup_parent

    def close(self) -> None:
        self._channel.close()

    def call(self, service: str, method: str, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """One unary call; the reply's class follows from the method's name, as CRI names all of them alike."""
        reply = getattr(pb, f"{method}Response")
        send: Any = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return send(request, timeout=timeout_s)

    def _runtime(self, method: str, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        return self.call("RuntimeService", method, getattr(pb, f"{method}Request")(**fields), timeout_s)

    # The runtime

    def version(self, timeout_s: float = 5.0) -> tuple[str, str]:
        reply = self._runtime("Version", timeout_s, version="v1")
        return reply.runtime_name, reply.runtime_version

    def ready(self, timeout_s: float = 5.0) -> bool:
        status = self._runtime("Status", timeout_s).status
        return any(condition.type == "RuntimeReady" and condition.status for condition in status.conditions)

    def user_namespaces(self, handler: str = "") -> bool:
        """Whether the runtime says that its handler can give pods a user namespace."""
        handlers = self._runtime("Status").runtime_handlers
        return any(h.name == handler and h.features.user_namespaces for h in handlers)

    def images(self) -> list[str]:
        reply = self.call("ImageService", "ListImages", pb.ListImagesRequest())
        return [tag for image in reply.images for tag in image.repo_tags]

    # Pods

    def run_pod(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        namespace: str = "default",
        handler: str = "",
        user_namespace: tuple[int, int] | None = None,
    ) -> Pod:
        """``user_namespace``: (first host id, how many)."""
        uid = str(uuid.uuid4())
        kubelet = {
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": namespace,
            "io.kubernetes.pod.uid": uid,
        }
        options = pb.NamespaceOption(network=pb.NODE, pid=pb.CONTAINER, ipc=pb.POD)
        if user_namespace is not None:
            host_id, length = user_namespace
            mapping = pb.IDMapping(host_id=host_id, container_id=0, length=length)
            options.network = pb.POD
            options.userns_options.CopyFrom(pb.UserNamespace(mode=pb.POD, uids=[mapping], gids=[mapping]))
        logs = self._logs / f"{namespace}_{name}_{uid}"
        logs.mkdir(parents=True)
        config = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=name, uid=uid, namespace=namespace),
            labels=kubelet | dict(labels or {}),
            annotations=dict(annotations or {}),
            log_directory=str(logs),
            linux=pb.LinuxPodSandboxConfig(
                cgroup_parent=self._pod_cgroup(uid),
                security_context=pb.LinuxSandboxSecurityContext(namespace_options=options),
            ),
        )
        reply = self._runtime("RunPodSandbox", config=config, runtime_handler=handler)
        return Pod(id=reply.pod_sandbox_id, name=name, config=config)

    def _pod_cgroup(self, uid: str) -> str:
        if self._cgroup_parent.endswith(".slice"):
            return f"{self._cgroup_parent.strip('/').removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"
        return f"{self._cgroup_parent}/pod{uid}"

    def stop_pod(self, pod: Pod) -> None:
        self._runtime("StopPodSandbox", pod_sandbox_id=pod.id)

    def remove_pod(self, pod: Pod) -> None:
        """Stop and remove it and, as kubelet does, its cgroup: that fails while anything is in it."""
        for container in self._runtime("ListContainers", filter=pb.ContainerFilter(pod_sandbox_id=pod.id)).containers:
            self._runtime("StopContainer", container_id=container.id, timeout=0)
        self.stop_pod(pod)
        self._runtime("RemovePodSandbox", pod_sandbox_id=pod.id)
        parent = pod.config.linux.cgroup_parent
        if parent.endswith(".slice"):  # as kubelet does it: systemd would make the directory of an active slice again
            subprocess.run(["systemctl", "stop", parent], check=True, capture_output=True)
        until(f"an empty cgroup of pod {pod.name}", lambda: remove_cgroups(parent), 10)

    def remove_all(self) -> None:
        for pod in self._runtime("ListPodSandbox").items:
            self._runtime("StopPodSandbox", pod_sandbox_id=pod.id)
            self._runtime("RemovePodSandbox", pod_sandbox_id=pod.id)

    # Containers

    def create(
        self,
        pod: Pod,
        name: str,
        image: str,
        command: Sequence[str] = (),
        *,
        volumes: Sequence[Volume] = (),
        memory_bytes: int = 0,
        cpuset_mems: str = "",
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        readonly_root: bool = False,
    ) -> Container:
        options = pod.config.linux.security_context.namespace_options
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name),
            image=pb.ImageSpec(image=image, user_specified_image=image),
            command=list(command),
            envs=[pb.KeyValue(key=key, value=value.encode()) for key, value in (env or {}).items()],
            mounts=[volume.message(options.userns_options.uids) for volume in volumes],
            labels={"io.kubernetes.container.name": name, **pod.config.labels, **(labels or {})},
            annotations=dict(annotations or {}),
            log_path=f"{name}.log",
            linux=pb.LinuxContainerConfig(
                resources=pb.LinuxContainerResources(memory_limit_in_bytes=memory_bytes, cpuset_mems=cpuset_mems),
                security_context=pb.LinuxContainerSecurityContext(
                    namespace_options=options, readonly_rootfs=readonly_root
                ),
            ),
        )
        reply = self._runtime("CreateContainer", pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
        return Container(id=reply.container_id, name=name, pod=pod, log=Path(pod.config.log_directory) / f"{name}.log")

    def start(self, container: Container) -> None:
        self._runtime("StartContainer", container_id=container.id)

    def run(self, pod: Pod, name: str, image: str, command: Sequence[str] = (), **options: Any) -> Container:
        container = self.create(pod, name, image, command, **options)
        self.start(container)
        return container

    def stop(self, container: Container, grace_s: int = 0) -> None:
        self._runtime("StopContainer", container_id=container.id, timeout=grace_s)

    def remove(self, container: Container) -> None:
        self._runtime("RemoveContainer", container_id=container.id)

    def status(self, container: Container) -> pb.ContainerStatus:
        reply: pb.ContainerStatusResponse = self._runtime("ContainerStatus", container_id=container.id)
        return reply.status

    def running(self, container: Container) -> bool:
        return self.status(container).state == pb.CONTAINER_RUNNING

    def exited(self, container: Container) -> bool:
        return self.status(container).state == pb.CONTAINER_EXITED

    def pid(self, container: Container) -> int:
        """The host pid of its first process."""
        return self.pid_of(container.id)

    def pid_of(self, container_id: str) -> int:
        info = self._runtime("ContainerStatus", container_id=container_id, verbose=True).info
        return int(json.loads(info["info"])["pid"])

    def spec(self, container: Container) -> dict[str, Any]:
        """The OCI spec the runtime made of it."""
        info = self._runtime("ContainerStatus", container_id=container.id, verbose=True).info
        return dict(json.loads(info["info"])["runtimeSpec"])

    def exec(self, container: Container, *command: str) -> tuple[int, str]:
        reply = self._runtime("ExecSync", container_id=container.id, cmd=list(command), timeout=10)
        return reply.exit_code, (reply.stdout + reply.stderr).decode(errors="replace")

    # What a container printed

    def lines(self, container: Container) -> Iterator[str]:
        """Its output, without the time, stream and tag that the CRI log format puts before each line."""
        if container.log.exists():
            for line in container.log.read_text(errors="replace").splitlines():
                yield line.split(" ", 3)[3]

    def wait_line(self, container: Container, start: str, timeout_s: float = 60.0) -> str:
        """The first line that begins with ``start``."""

        def look() -> str | None:
            return next((line for line in self.lines(container) if line.startswith(start)), None)

        try:
            return str(until(f"a line {start!r}", look, timeout_s))
        except Timeout as error:
            status = self.status(container)
            seen = [*self.lines(container)][-5:]
            raise Timeout(f"{error} from {container.name}: {seen}, {status.reason} {status.message}") from None
