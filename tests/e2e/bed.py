"""What one test uses of a runtime: its pods, models and plugins, and the check that nothing of them is left."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.lab import pages
from tests.lab.containerd import Containerd
from tests.lab.cri import Container, Pod, Timeout, Volume, until
from tests.lab.crio import Crio
from tests.lab.plugin import PluginProcess
from tests.lab.slowfs import SlowFs
from tests.lab.store import NotInstalled, mapping_runc, probe_binary, program

MIB = 1 << 20
PROBE = "localhost/probe:1"
"""Distroless: one static program, no shell, no libc."""
BUSYBOX = "localhost/busybox:1"
FAULTY = "2.4"
"""The version that the costly faults run on."""
APPLETS = ("sh", "cat", "ls", "sleep", "dd")

Runtime = Containerd | Crio


class Runtimes:
    """Started when first asked for, closed at the session's end."""

    def __init__(self) -> None:
        self._running: dict[str, Runtime] = {}

    def get(self, slot: str) -> Runtime:
        if slot not in self._running:
            self._running[slot] = self._start(slot)
        return self._running[slot]

    def close(self) -> None:
        for runtime in self._running.values():
            runtime.close()

    @staticmethod
    def _start(slot: str) -> Runtime:
        try:
            if slot == "crio":
                runtime: Runtime = Crio()
            else:
                runtime = Containerd(slot, handlers={"userns": mapping_runc()})
        except NotInstalled as error:
            raise RuntimeError(str(error)) from error
        try:
            runtime.start()
            runtime.add_image(PROBE, {"probe": probe_binary()}, directories=["models", "sync", "tmp"])
            runtime.add_image(
                BUSYBOX,
                {"bin/busybox": program("busybox")},
                links={f"bin/{applet}": "busybox" for applet in APPLETS},
                directories=["models", "sync", "tmp"],
                config={"Env": ["PATH=/bin"]},
            )
        except BaseException:
            runtime.close()
            raise
        return runtime


class Bed:
    """What one test uses of a runtime."""

    _names = itertools.count(1)

    def __init__(self, runtime: Runtime, directory: Path) -> None:
        self.runtime = runtime
        self.cri = runtime.cri
        self.directory = directory
        self.sync = directory / "sync"
        self.sync.mkdir(parents=True)
        for path in (directory, self.sync):
            path.chmod(0o755)
        self._pods: list[Pod] = []
        self.plugins: list[PluginProcess] = []
        self._slow: list[SlowFs] = []

    def model(self, name: str = "models/model.bin", size: int = 16 * MIB) -> Path:
        """Random bytes on disk, none of them in the page cache."""
        return pages.make_model(self.directory / name, size)

    def image_model(self, size: int, *, path: str = "models/model.bin", with_probe: bool = False) -> tuple[str, Path]:
        """An image that holds a model: its name, and the file in the node's image store, not in the page cache."""
        name = f"localhost/model-{next(self._names)}-{os.getpid()}:1"
        files: dict[str, Path | bytes] = {path: os.urandom(size)}
        if with_probe:
            files["probe"] = probe_binary()
        self.runtime.add_image(name, files, directories=["sync", "models"])
        stored = max(self.runtime.stored(path), key=lambda found: found.stat().st_mtime_ns)
        pages.evict(stored)
        return name, stored

    def slow(self, size: int = 64 * MIB, bytes_per_s: int = 16 * MIB) -> SlowFs:
        fs = SlowFs(self.directory / f"slow{next(self._names)}", size, bytes_per_s)
        self._slow.append(fs)
        return fs

    def plugin(self, config: Mapping[str, Any], *, start: bool = True, arguments: Sequence[str] = ()) -> PluginProcess:
        directory = self.directory / f"plugin{next(self._names)}"
        plugin = PluginProcess(self.runtime.nri_socket, directory, config, arguments=arguments)
        self.plugins.append(plugin)
        return plugin.start() if start else plugin

    def pod(self, **options: Any) -> Pod:
        pod = self.cri.run_pod(f"pod-{next(self._names)}", **options)
        self._pods.append(pod)
        return pod

    def container(self, pod: Pod, *commands: str, name: str = "server", **options: Any) -> Container:
        """Created and started: the probe with these commands; /sync is the bed's, for ``wait`` and ``go``."""
        container = self.create(pod, *commands, name=name, **options)
        self.cri.start(container)
        return container

    def create(self, pod: Pod, *commands: str, name: str = "server", image: str = PROBE, **options: Any) -> Container:
        volumes = [Volume(target="/sync", source=str(self.sync), mapped=self.maps_ids), *options.pop("volumes", ())]
        command = ["/probe", *commands] if image == PROBE else list(commands)
        return self.cri.create(pod, name, image, command, volumes=volumes, **options)

    def volume(self, path: Path, target: str = "/models", **options: Any) -> Volume:
        return Volume(target=target, source=str(path), mapped=self.maps_ids, **options)

    @property
    def maps_ids(self) -> bool:
        return not self.runtime.version.startswith("1.")

    def go(self, name: str = "go") -> None:
        """What a container that waits on /sync/NAME waits for."""
        (self.sync / name).touch()

    def share_owned(self, path: Path, container: Container) -> float:
        """Share of a file's resident pages that are charged to the container's memory cgroup."""
        owners = pages.owners(path)
        inode = pages.memory_cgroup(self.cri.pid(container)).stat().st_ino
        return owners[inode] / max(1, owners.total())

    def remove_pods(self) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(self.cri.remove_pod, self._pods))
        self._pods.clear()

    def close(self) -> list[str]:
        """Ends everything and says what of it would not go."""
        for fs in self._slow:
            fs.release()
        left: list[str] = []
        try:
            self.remove_pods()
            for plugin in self.plugins:
                plugin.stop()
                left += [f"process {found}" for found in plugin.left()]
                if plugin.control.exists() and plugin.stopped_well:
                    left.append(f"socket {plugin.control}")
        finally:
            for plugin in self.plugins:
                if plugin.alive():
                    plugin.kill()
            for fs in self._slow:
                fs.close()
        try:
            until("an empty runtime", lambda: not self.runtime.left_of_pods(), 20)
        except Timeout:
            left += self.runtime.left_of_pods()
        shutil.rmtree(self.directory)
        return left
