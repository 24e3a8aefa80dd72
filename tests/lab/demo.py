"""The demo's containerd arm: a containerd of its own, the real plugin beside it, the server in a pod.

The server is the same file as without a runtime; the container sees the host's Python through read-only mounts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nri_warmup.cli.demo import SERVER, wait_until
from nri_warmup.daemon.control import request
from tests.lab.containerd import Containerd
from tests.lab.cri import Volume
from tests.lab.store import NotInstalled

IMAGE = "localhost/demo:1"
_CONFIG = {
    "profiles": {"demo": {"files": ["/models/**"]}},
    "selectors": [{"profile": "demo", "matchLabels": {"warm": "yes"}}],
}


class _Arm:
    def __init__(self, control: Path, container_id: str) -> None:
        self._control = control
        self._id = container_id

    def warm_outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def ended() -> bool:
            status = request(str(self._control), {"op": "status"})
            entries = [e for e in status["containers"] if e["id"] == self._id and e["outcome"]]
            found.update(entries[0]["outcome"] if entries else {})
            return bool(entries)

        wait_until(ended, 300, "the end of the warm-up")
        return found


class ContainerdRuntime:
    name = "containerd"

    def __init__(self, slot: str = "") -> None:
        self._containerd = _start(slot)
        self.name = f"containerd {self._containerd.version}"
        at = self._containerd.directory
        self._control = at / "control.sock"
        (at / "plugin.yaml").write_text(json.dumps(_CONFIG))
        links = {name: f"usr/{name}" for name in ("lib", "lib64", "bin") if Path("/", name).is_symlink()}
        self._containerd.add_image(IMAGE, {"etc/demo": b""}, links=links, directories=["usr", "models", "run", "tmp"])
        command = [sys.executable, "-m", "nri_warmup.cli.main", "run", "--config", f"{at}/plugin.yaml"]
        command += ["--nri-socket", f"{at}/nri.sock", "--control-socket", f"{self._control}"]
        command += ["--metrics-socket", f"{at}/metrics.sock", "--state-dir", f"{at}/state-of-plugin"]
        with (at / "plugin.log").open("wb") as log:
            self._plugin = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(self._registered, 30, "the plugin's registration")
        except BaseException:
            print((at / "plugin.log").read_text(errors="replace")[-2000:], file=sys.stderr)
            self.close()
            raise

    def _registered(self) -> bool:
        try:
            return bool(request(str(self._control), {"op": "status"})["connection"]["state"] == "registered")
        except (OSError, ValueError):
            return False

    @contextmanager
    def serve(self, model: Path, address: Path, *, warm: bool) -> Iterator[_Arm]:
        cri = self._containerd.cri
        pod = cri.run_pod(f"demo-{time.monotonic_ns()}", labels={"warm": "yes"} if warm else {})
        python = os.path.realpath(sys.executable)
        volumes = [Volume(target="/usr", source="/usr"), Volume(target="/models/model.bin", source=str(model))]
        volumes.append(Volume(target="/server.py", source=str(SERVER)))
        volumes.append(Volume(target=str(address.parent), source=str(address.parent), readonly=False))
        if not python.startswith("/usr/"):
            volumes.append(Volume(target=sys.base_prefix, source=sys.base_prefix))
        command = [python, "-I", "-S", "/server.py", "/models/model.bin", str(address)]
        container = cri.run(pod, "server", IMAGE, command, volumes=volumes)
        try:
            yield _Arm(self._control, container.id)
        finally:
            cri.remove_pod(pod)

    def close(self) -> None:
        self._plugin.terminate()
        try:
            self._plugin.wait(10)
        finally:
            self._containerd.close()


def _start(slot: str) -> Containerd:
    """The newest containerd that the lab has: downloaded by tests/lab/setup.sh, or the machine's own."""
    problems = []
    for candidate in [slot] if slot else ["2.4", "2.1", "1.7"]:
        try:
            containerd = Containerd(candidate)
        except NotInstalled as error:
            problems.append(str(error))
            continue
        try:
            containerd.start()
        except BaseException:
            containerd.close()
            raise
        return containerd
    raise NotInstalled("; ".join(problems))
