"""A Kubernetes node without a control plane: containerd 2.4, a kubelet that starts static pods, and the plugin.

What the kubelet is configured for is in ``kubelet.json``; it lacks what depends on where things are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.lab._pb import cri_pb2 as pb
from tests.lab.containerd import Containerd
from tests.lab.cri import until
from tests.lab.plugin import PluginProcess
from tests.lab.store import cache_directory, program
from tests.vm import guest
from tests.vm.conftest import NRI_LIMITS, add_images

HERE = Path(__file__).resolve().parent
CONFIG: dict[str, Any] = {
    "profiles": {"model": {"files": ["/models/**"], "reserve": "4Mi"}},
    "selectors": [],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A container as the runtime and the kernel know it."""

    id: str
    pid: int
    cgroup: Path


class Node:
    """``run_pod`` writes a manifest; the kubelet does the rest."""

    def __init__(self, runtime: Containerd, plugin: PluginProcess, directory: Path) -> None:
        self.runtime = runtime
        self.plugin = plugin
        self.directory = directory
        self.manifests = directory / "manifests"
        self.log = directory / "kubelet.log"
        self._kubelet: subprocess.Popen[bytes] | None = None

    # kubelet

    def start(self) -> None:
        self.manifests.mkdir(parents=True, exist_ok=True)
        config = json.loads((HERE / "kubelet.json").read_text())
        config |= {
            "staticPodPath": str(self.manifests),
            "containerRuntimeEndpoint": f"unix://{self.runtime.socket}",
        }
        path = self.directory / "kubelet.json"
        path.write_text(json.dumps(config))
        command = [
            str(cache_directory() / "node" / "kubelet"),
            f"--config={path}",
            "--hostname-override=guest",
            "--v=2",
        ]
        with self.log.open("ab") as log:
            self._kubelet = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("the kubelet's answer", self._answers, 120, 0.5)

    def _answers(self) -> bool:
        assert self._kubelet is not None
        if self._kubelet.poll() is not None:
            raise RuntimeError("the kubelet ended:\n" + "\n".join(self.log.read_text().splitlines()[-30:]))
        try:
            return bool(self.summary())
        except OSError:
            return False

    def stop(self) -> None:
        if self._kubelet is not None:
            self._kubelet.terminate()
            self._kubelet.wait(30)
            self._kubelet = None

    def summary(self) -> dict[str, Any]:
        with urllib.request.urlopen("http://127.0.0.1:10255/stats/summary", timeout=30) as answer:
            return dict(json.load(answer))

    def container_memory(self, pod: str, container: str = "server") -> dict[str, Any]:
        """kubelet's figures of a container's memory; empty as long as it has none."""
        for found in self.summary().get("pods", []):
            if found["podRef"]["name"] == f"{pod}-guest":
                for one in found.get("containers", []):
                    if one["name"] == container:
                        return dict(one.get("memory", {}))
        return {}

    # Pods

    def run_pod(
        self,
        name: str,
        models: Path,
        command: list[str],
        *,
        image: str,
        resources: Mapping[str, Any],
        annotations: Mapping[str, str] | None = None,
    ) -> Path:
        """A folder for the pod's own use, seen as /sync; models are seen as /models."""
        sync = self.directory / f"sync-{name}"
        sync.mkdir()
        mounts = [{"name": "models", "mountPath": "/models", "readOnly": True}, {"name": "sync", "mountPath": "/sync"}]
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "server",
                        "image": image,
                        "imagePullPolicy": "Never",
                        "command": command,
                        "resources": dict(resources),
                        "volumeMounts": mounts,
                    }
                ],
                "volumes": [
                    {"name": "models", "hostPath": {"path": str(models)}},
                    {"name": "sync", "hostPath": {"path": str(sync)}},
                ],
            },
        }
        fresh = self.directory / f"{name}.json"
        fresh.write_text(json.dumps(manifest))
        shutil.move(fresh, self.manifests / f"{name}.json")
        return sync

    def running(self, pod: str, container: str = "server") -> Running:
        """Once it runs."""
        return until(f"{container} of pod {pod}", lambda: self._find(pod, container), 120, 0.5)  # type: ignore[no-any-return]

    def _find(self, pod: str, container: str) -> Running | None:
        wanted = {"io.kubernetes.pod.name": f"{pod}-guest", "io.kubernetes.container.name": container}
        cri = self.runtime.cri
        for found in cri.call("RuntimeService", "ListContainers", pb.ListContainersRequest()).containers:
            if found.state == pb.CONTAINER_RUNNING and wanted.items() <= dict(found.labels).items():
                try:
                    pid = cri.pid_of(found.id)
                    return Running(id=found.id, pid=pid, cgroup=guest.cgroup_of(pid))
                except (grpc.RpcError, FileNotFoundError):
                    continue  # it has just ended
        return None

    def remove_pod(self, name: str) -> None:
        (self.manifests / f"{name}.json").unlink(missing_ok=True)
        until(f"the end of pod {name}", lambda: self._find(name, "server") is None, 120, 0.5)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    assert guest.DRIVER == "systemd", "a kubelet's node uses systemd's driver: CGROUP_DRIVER=systemd"
    _network()
    with Containerd("2.4", handlers={"crun": program("crun")}, nri=NRI_LIMITS, systemd_cgroup=True) as runtime:
        add_images(runtime)
        plugin = PluginProcess(runtime.nri_socket, runtime.directory / "plugin", CONFIG)
        plugin.start()
        made = Node(runtime, plugin, runtime.directory / "node")
        made.directory.mkdir()
        try:
            made.start()
            yield made
            for manifest in made.manifests.iterdir():
                made.remove_pod(manifest.stem)
        finally:
            made.stop()
            plugin.stop()
            for log, name in ((made.log, "kubelet.log"), (plugin.log, "plugin.log"), (runtime.log, "containerd24.log")):
                shutil.copy(log, guest.OUT / name)


def _network() -> None:
    """The kubelet wants an address and a default route; where they lead to does not matter."""
    for command in (
        "modprobe dummy",
        "ip link add dummy0 type dummy",
        "ip addr add 10.9.9.1/24 dev dummy0",
        "ip link set dummy0 up",
        "ip route add default via 10.9.9.254 dev dummy0",
    ):
        subprocess.run(command.split(), check=True)
