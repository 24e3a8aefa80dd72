"""Drives the Go programs of this directory: a runtime without containers, and plugins beside it.

Used by the component tests and by the NRI benchmark. Everything waits for an event with a deadline; nothing sleeps.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
DEADLINE_S = 30.0
"""Longer than anything should take on a busy machine; a test that meets it fails."""

CI_VERSIONS = ("0.6.1", "0.8.0", "0.12.3")
WHOLE_LIFE = (
    "RunPodSandbox", "CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer",
    "UpdateContainer", "PostUpdateContainer", "StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox",
)  # fmt: skip
Json = dict[str, Any]


def build(version: str) -> Path:
    """The directory with ``nri-runtime`` and ``nri-plugin`` of one NRI version, built now if it is not in the cache."""
    done = subprocess.run([sys.executable, HERE / "build.py", version], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"building for NRI {version} failed:\n{done.stderr}")
    return Path(done.stdout.strip())


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class RuntimeRefused(Exception):
    """The runtime (or, through it, a plugin) answered an operation with an error."""

    def __init__(self, reply: Json) -> None:
        super().__init__(reply["error"])
        self.reply = reply


class LineReader:
    """Lines of a pipe, with a deadline for each wait."""

    def __init__(self, fd: int, what: str) -> None:
        self._fd, self._what, self._rest, self._lines = fd, what, b"", list[bytes]()

    def next(self, deadline_s: float = DEADLINE_S) -> str:
        end = time.monotonic() + deadline_s
        while not self._lines:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{self._what}: no line within {deadline_s} s")
            data = os.read(self._fd, 1 << 20)
            if not data:
                raise EOFError(f"{self._what}: output ended")
            *whole, self._rest = (self._rest + data).split(b"\n")
            self._lines.extend(whole)
        return self._lines.pop(0).decode()


class GoRuntime:
    """One running ``nri-runtime``. ``event`` and friends return its JSON replies; an error raises RuntimeRefused."""

    def __init__(self, version: str, socket: Path | None, *args: str, trace: bool = True, binaries: Path | None = None):
        self.version = version
        self.socket = socket
        self.binaries = binaries or build(version)
        command = [str(self.binaries / "nri-runtime"), *args]
        command += ["-socket", str(socket)] if socket else []
        command += ["-trace"] if trace else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin and self.process.stdout
        self._lines = LineReader(self.process.stdout.fileno(), "nri-runtime")
        self._next = 0
        self._early: dict[int, Json] = {}
        assert json.loads(self._lines.next()) == {"ready": True}

    @property
    def traces(self) -> bool:
        """Whether replies tell each plugin's own answer."""
        return numbers(self.version) >= (0, 6)

    def send(self, op: str, **fields: object) -> int:
        """Starts an operation; ``receive`` waits for it."""
        assert self.process.stdin
        self._next += 1
        self.process.stdin.write(json.dumps({"id": self._next, "op": op, **fields}).encode() + b"\n")
        self.process.stdin.flush()
        return self._next

    def receive(self, ticket: int, deadline_s: float = DEADLINE_S) -> Json:
        while ticket not in self._early:
            reply = json.loads(self._lines.next(deadline_s))
            self._early[reply["id"]] = reply
        reply = self._early.pop(ticket)
        if "error" in reply:
            raise RuntimeRefused(reply)
        return reply

    def call(self, op: str, *, deadline_s: float = DEADLINE_S, **fields: object) -> Json:
        return self.receive(self.send(op, **fields), deadline_s)

    def send_event(self, event: str, pod: Json, container: Json | None = None, **fields: object) -> int:
        extra = {"container": container} if container else {}
        return self.send("event", event=event, pod=pod, **extra, **fields)

    def event(self, event: str, pod: Json, container: Json | None = None, **fields: object) -> Json:
        return self.receive(self.send_event(event, pod, container, **fields))

    def live(self, pod: Json, container: Json, events: Sequence[str] = WHOLE_LIFE) -> dict[str, Json]:
        """Takes one container through its life; the replies by event."""
        return {name: self.event(name, pod, container if "Container" in name else None) for name in events}

    def wait_log(self, text: str, count: int = 1, deadline_s: float = DEADLINE_S) -> list[str]:
        """Waits until ``count`` lines of the library's log contain ``text``."""
        lines: list[str] = self.call(
            "wait-log", text=text, count=count, timeout_ms=int(deadline_s * 1000), deadline_s=deadline_s + DEADLINE_S
        )["lines"]
        return lines

    def wait_connected(self, count: int = 1, deadline_s: float = DEADLINE_S) -> None:
        """Waits until plugins were registered and synchronised ``count`` times in this runtime's life."""
        # "plugin "90-x" connected and synchronized" since 0.7, "plugin "90-x" connected" before.
        self.wait_log('" connected', count, deadline_s)

    def state(self) -> Json:
        return self.call("state")

    def close(self) -> None:
        """Ends it as a runtime ends: launched plugins are killed, connections closed."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def __enter__(self) -> GoRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if kind else self.close()


class PluginProcess:
    """A plugin in a process of its own; what it prints is read as JSON lines."""

    def __init__(self, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(env or {})},
            )
        assert self.process.stdout
        self._lines = LineReader(self.process.stdout.fileno(), f"plugin {command[0]}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, deadline_s: float = DEADLINE_S, /, **wanted: object) -> Json:
        """The next printed object that has all of ``wanted``; earlier ones are passed over."""
        end = time.monotonic() + deadline_s
        seen = []
        while True:
            try:
                found: Json = json.loads(self._lines.next(max(0.0, end - time.monotonic())))
            except (TimeoutError, EOFError) as error:
                raise AssertionError(
                    f"{error}; wanted {wanted}, saw {seen}; log:\n{self.log.read_text()[-4000:]}"
                ) from None
            if all(found.get(key) == value for key, value in wanted.items()):
                return found
            seen.append(found)

    def wait_exit(self, deadline_s: float = DEADLINE_S) -> int:
        return self.process.wait(deadline_s)

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(DEADLINE_S)

    def close(self) -> None:
        self.kill()
        if self.process.stdout:
            self.process.stdout.close()


def go_plugin(runtime: GoRuntime, log: Path, *args: str) -> PluginProcess:
    """The minimal Go plugin of the runtime's own version, connected to it."""
    command = [runtime.binaries / "nri-plugin", *(["-socket", str(runtime.socket)] if runtime.socket else []), *args]
    return PluginProcess(command, log)


def pod(
    name: str = "pod", *, labels: Mapping[str, str] = {}, annotations: Mapping[str, str] = {}, **fields: object
) -> Json:
    """A pod as containerd describes one; ``fields`` are of api.proto's PodSandbox."""
    return {
        "id": f"{name}-sandbox",
        "name": name,
        "uid": f"uid-of-{name}",
        "namespace": "default",
        "labels": dict(labels),
        "annotations": dict(annotations),
        "linux": {"cgroup_parent": f"/kubepods/{name}", "cgroups_path": f"/kubepods/{name}/{name}-sandbox"},
        **fields,
    }


def container(of: Json, name: str = "server", *, annotations: Mapping[str, str] = {}, **fields: object) -> Json:
    """A container of a pod; ``fields`` are of api.proto's Container."""
    return {
        "id": f"{of['name']}-{name}",
        "pod_sandbox_id": of["id"],
        "name": name,
        "labels": {"io.kubernetes.container.name": name, "io.kubernetes.pod.namespace": of["namespace"]},
        "annotations": {"io.kubernetes.cri.container-name": name, **annotations},
        "args": ["/bin/server"],
        "env": ["PATH=/usr/bin:/bin"],
        "mounts": [{"destination": "/data", "source": "/srv/data", "type": "bind", "options": ["rbind", "ro"]}],
        "linux": {
            "cgroups_path": f"{of['linux']['cgroup_parent']}/{of['name']}-{name}",
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "resources": {"memory": {"limit": {"value": 1 << 30}}},
        },
        **fields,
    }
