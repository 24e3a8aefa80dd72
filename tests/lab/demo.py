"""The demo's arms with containers: pods of a containerd of our own, or bare runc and crun; the real plugin beside them.

The server is the same file as without a runtime; the container sees the host's Python through read-only mounts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
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
from tests.oci.bundle import Bundle, runtime_command

IMAGE = "localhost/demo:1"
HOOK = Path(__file__).resolve().parents[2] / "hooks" / "nri-warmup-hook"
_CONFIG = {
    "profiles": {"demo": {"files": ["/models/**"]}},
    "selectors": [{"profile": "demo", "matchLabels": {"warm": "yes"}}],
}
_LINKS = {name: f"usr/{name}" for name in ("lib", "lib64", "bin") if Path("/", name).is_symlink()}


class _Plugin:
    """``nri-warmup run`` with everything of it below ``at``."""

    def __init__(self, at: Path, nri_socket: Path) -> None:
        self.control = at / "control.sock"
        self._log = at / "plugin.log"
        (at / "plugin.yaml").write_text(json.dumps(_CONFIG))
        command = [sys.executable, "-m", "nri_warmup.cli.main", "run", "--config", f"{at}/plugin.yaml"]
        command += ["--nri-socket", f"{nri_socket}", "--control-socket", f"{self.control}", "--hook", f"{HOOK}"]
        command += ["--metrics-socket", f"{at}/metrics.sock", "--state-dir", f"{at}/state-of-plugin"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self, what: str, state: str = "") -> None:
        """Until it answers and, where ``state`` is given, is that far with the runtime."""
        try:
            wait_until(lambda: state in self._state(), 30, what)
        except BaseException:
            print(self._log.read_text(errors="replace")[-2000:], file=sys.stderr)
            raise

    def _state(self) -> str:
        try:
            return str(request(str(self.control), {"op": "status"})["connection"]["state"])
        except (OSError, ValueError):
            return "" if self._process.poll() is None else "ended"

    def outcome(self, container_id: str) -> dict[str, Any]:
        """What the plugin says of a container's warm-up, once it has ended."""
        found: dict[str, Any] = {}

        def ended() -> bool:
            status = request(str(self.control), {"op": "status"})
            entries = [e for e in status["containers"] if e["id"] == container_id and e["outcome"]]
            found.update(entries[0]["outcome"] if entries else {})
            return bool(entries)

        wait_until(ended, 300, "the end of the warm-up")
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)


class _Arm:
    def __init__(self, plugin: _Plugin, container_id: str) -> None:
        self._plugin = plugin
        self._id = container_id

    def warm_outcome(self) -> dict[str, Any]:
        return self._plugin.outcome(self._id)


def _mounts(model: Path, address: Path) -> list[tuple[str, str, bool]]:
    """(source, destination, read-only)."""
    mounts = [("/usr", "/usr", True), (str(model), "/models/model.bin", True), (str(SERVER), "/server.py", True)]
    mounts.append((str(address.parent), str(address.parent), False))
    if not os.path.realpath(sys.executable).startswith("/usr/"):
        mounts.append((sys.base_prefix, sys.base_prefix, True))
    return mounts


def _command(address: Path) -> list[str]:
    return [os.path.realpath(sys.executable), "-I", "-S", "/server.py", "/models/model.bin", str(address)]


class ContainerdRuntime:
    """Pods over CRI; the plugin hears of them by NRI."""

    def __init__(self) -> None:
        self._containerd = _newest()
        self.name = f"containerd {self._containerd.version}"
        at = self._containerd.directory
        self._containerd.add_image(IMAGE, {"etc/demo": b""}, links=_LINKS, directories=["usr", "models", "run", "tmp"])
        self._plugin = _Plugin(at, at / "nri.sock")
        try:
            self._plugin.wait("the plugin's registration", "registered")
        except BaseException:
            self.close()
            raise

    @contextmanager
    def serve(self, model: Path, address: Path, *, warm: bool) -> Iterator[_Arm]:
        cri = self._containerd.cri
        pod = cri.run_pod(f"demo-{time.monotonic_ns()}", labels={"warm": "yes"} if warm else {})
        volumes = [Volume(target=to, source=source, readonly=ro) for source, to, ro in _mounts(model, address)]
        container = cri.run(pod, "server", IMAGE, _command(address), volumes=volumes)
        try:
            yield _Arm(self._plugin, container.id)
        finally:
            cri.remove_pod(pod)

    def close(self) -> None:
        try:
            self._plugin.close()
        finally:
            self._containerd.close()


class OciRuntime:
    """runc or crun and no engine: the plugin hears of the container from its OCI hook."""

    def __init__(self, kind: str) -> None:
        self._runtime = next((name for name in (f"{kind}-forky", f"{kind}-bookworm") if _there(name)), "")
        if not self._runtime:
            raise NotInstalled(f"no {kind} in the lab")
        self.name = kind
        self._directory = Path(tempfile.mkdtemp(prefix="nriw-demo-", dir="/var/tmp"))
        self._plugin = _Plugin(self._directory, self._directory / "nri.sock")
        self._plugin.wait("the plugin", "connecting")

    @contextmanager
    def serve(self, model: Path, address: Path, *, warm: bool) -> Iterator[_Arm]:
        with Bundle(self._runtime, self._directory, _command(address)) as bundle:
            for name, target in _LINKS.items():
                (bundle.rootfs / name).symlink_to(target)
            for source, destination, readonly in _mounts(model, address):
                bundle.mount(Path(source), destination, *(["ro"] if readonly else []))
            if warm:
                bundle.annotate(profile="demo")
                arguments = ("--id", bundle.id, "--socket", str(self._plugin.control), "--deadline", "30")
                bundle.hook("createRuntime", HOOK, *arguments, timeout_s=40)
            for step in (bundle.create, bundle.start):
                ended = step()
                if ended.code:
                    raise RuntimeError(f"{self._runtime}: {ended.err}")
            yield _Arm(self._plugin, bundle.id)

    def close(self) -> None:
        try:
            self._plugin.close()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)


def _there(name: str) -> bool:
    try:
        return bool(runtime_command(name))
    except NotInstalled:
        return False


def _newest() -> Containerd:
    """The newest containerd that the lab has."""
    problems = []
    for slot in ("2.4", "2.1", "1.7"):
        try:
            containerd = Containerd(slot)
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
