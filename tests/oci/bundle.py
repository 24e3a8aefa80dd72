"""Bare bundles for runc and crun, without any engine: what a container is made of, run and looked at from outside.

with Bundle(runtime, directory, args=["/probe", "say", "hello"]) as bundle:
    bundle.hook("createRuntime", path, "--id", bundle.id)
    assert bundle.run().lines == ["say hello"]
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.leftovers import remove_cgroups
from tests.lab.store import NotInstalled, cache_directory, probe_binary, program

RUNTIMES = ("runc-bookworm", "runc-forky", "crun-bookworm", "crun-forky")
DEFAULT_CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
"""What containerd and CRI-O give a container that asks for nothing."""
_NAMESPACES = ("pid", "network", "ipc", "uts", "mount")


def runtime_command(name: str) -> list[str]:
    """How to call it. crun refuses a hierarchy of v1 beside a cgroup2 mount that has controllers, so it gets a mount
    namespace in which that mount is not to be seen."""
    path = cache_directory() / "oci" / name
    if not path.exists():
        raise NotInstalled(f"no {name} in {cache_directory()}: run tests/oci/setup.sh")
    hide = 'if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec "$@"'
    if name.startswith("crun"):
        return ["unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh", str(path)]
    return [str(path)]


def compiled(source: Path) -> Path:
    """A static program, compiled once for each version of its text."""
    out = cache_directory() / "oci" / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not out.exists():
        fresh = out.with_name(f"{out.name}.{os.getpid()}")
        subprocess.run([program("gcc"), "-O2", "-Wall", "-Werror", "-static", "-o", fresh, source], check=True)
        fresh.replace(out)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One call of the runtime."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Bundle:
    """``parent`` is the top-level cgroup of all containers of one test, removed with it."""

    def __init__(self, runtime: str, directory: Path, args: Sequence[str], *, memory_bytes: int = 0) -> None:
        self.runtime = runtime
        self.id = f"lab-{uuid.uuid4().hex[:12]}"
        self.directory = directory / self.id
        self.rootfs = self.directory / "rootfs"
        self.parent = f"/nri-warmup-oci-{os.getpid()}"
        self._command = runtime_command(runtime)
        self._state = directory / "state"
        self.spec = self._spec(args, memory_bytes)
        self.said = self.directory / "said"
        """crun writes there what hooks say on stderr; runc quotes it in its own error."""
        self.spec["annotations"]["run.oci.hooks.stderr"] = str(self.said)
        self.pid = 0

    def __enter__(self) -> Bundle:
        for name in ("proc", "sys", "dev", "tmp", "etc"):
            (self.rootfs / name).mkdir(parents=True)
        self.add("probe", probe_binary())
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run([*self._call(), "delete", "-f", self.id], capture_output=True, check=False, timeout=30)
        end = time.monotonic() + 10
        while not remove_cgroups(f"{self.parent}/{self.id}") and time.monotonic() < end:
            time.sleep(0.02)
        remove_cgroups(self.parent)  # it may still hold another bundle's
        shutil.rmtree(self.directory)

    # What it is made of

    def add(self, name: str, content: Path | bytes) -> Path:
        """A program of the container, or any other file of it."""
        target = self.rootfs / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            target.write_bytes(content)
            target.chmod(0o755)
        else:
            shutil.copy2(content, target)
        return target

    def mount(self, source: Path, destination: str, *options: str) -> None:
        mount = {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", *options]}
        self.spec["mounts"].append(mount)

    def annotate(self, **annotations: str) -> None:
        """``files="/m/*"`` becomes ``files.nri-warmup.dev``."""
        for key, value in annotations.items():
            self.spec["annotations"][f"{key.replace('_', '-')}.nri-warmup.dev"] = value

    def hook(self, stage: str, path: Path | str, *args: str, timeout_s: int | None = None) -> None:
        entry: dict[str, Any] = {"path": str(path), "args": [Path(path).name, *args], "env": ["PATH=/usr/bin:/bin"]}
        if timeout_s is not None:
            entry["timeout"] = timeout_s
        self.spec.setdefault("hooks", {}).setdefault(stage, []).append(entry)

    # Its life

    def run(self, *, within_s: float = 60.0) -> Ended:
        """Run it to its end; all it prints is in ``out``."""
        return self._runtime("run", "-b", str(self.directory), self.id, within_s=within_s)

    def create(self, *, within_s: float = 60.0) -> Ended:
        """Created and not started. Its output goes to ``output``: a detached container must not keep our pipes."""
        pid_file = self.directory / "pid"
        ended = self._runtime(
            "create", "--pid-file", str(pid_file), "-b", str(self.directory), self.id, within_s=within_s
        )
        if ended.code == 0:
            self.pid = int(pid_file.read_text())
        return ended

    def start(self, *, within_s: float = 60.0) -> Ended:
        return self._runtime("start", self.id, within_s=within_s)

    @property
    def output(self) -> list[str]:
        return (self.directory / "output").read_text(errors="replace").splitlines()

    def _call(self) -> list[str]:
        return [*self._command, "--root", str(self._state)]

    def _runtime(self, *arguments: str, within_s: float) -> Ended:
        (self.directory / "config.json").write_text(json.dumps(self.spec))
        out, err = self.directory / "output", self.directory / "errors"
        started = time.monotonic()
        with out.open("ab") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*self._call(), *arguments], stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file
            )
            # Not process.wait(timeout): that looks again after 32 ms, then 50, and the time taken is measured here.
            pidfd = os.pidfd_open(process.pid)
            over = not select.select([pidfd], [], [], within_s)[0]
            seconds = time.monotonic() - started
            os.close(pidfd)
            if over:
                process.kill()
            code = process.wait()
            if over:
                raise subprocess.TimeoutExpired(list(arguments), within_s)
        return Ended(
            code=code, out=out.read_text(errors="replace"), err=err.read_text(errors="replace"), seconds=seconds
        )

    def _spec(self, args: Sequence[str], memory_bytes: int) -> dict[str, Any]:
        capabilities = [f"CAP_{name}" for name in DEFAULT_CAPABILITIES]
        resources: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
        if memory_bytes:
            resources["memory"] = {"limit": memory_bytes}
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": list(args),
                "env": ["PATH=/bin:/usr/bin"],
                "cwd": "/",
                "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
                "noNewPrivileges": False,
            },
            "root": {"path": "rootfs", "readonly": False},
            "hostname": "lab",
            "annotations": {},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            ],
            "linux": {
                "cgroupsPath": f"{self.parent}/{self.id}",
                "resources": resources,
                "namespaces": [{"type": kind} for kind in _NAMESPACES],
            },
        }


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
