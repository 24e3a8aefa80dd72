"""The program under test as an operator runs it: a process with a configuration file, asked over its own sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab import leftovers
from tests.lab.cri import PATIENCE, Timeout, until

ENDED = frozenset(
    ("done", "partial", "over-budget", "deadline", "cancelled", "container-gone", "failed", "skipped", "observed")
)


class PluginProcess:
    """``nri-warmup run`` on one runtime's NRI socket; config, sockets, log and state live in ``directory``."""

    def __init__(
        self,
        nri_socket: Path,
        directory: Path,
        config: Mapping[str, Any],
        *,
        arguments: Sequence[str] = (),
        program: Sequence[str | Path] = (Path(sys.executable).with_name("nri-warmup"),),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.config = directory / "config.yaml"
        self.control = directory / "control.sock"
        self.metrics_socket = directory / "metrics.sock"
        self.log = directory / "plugin.log"
        self.write_config(config)
        self._command = [
            *(str(part) for part in program),
            "run",
            f"--config={self.config}",
            f"--nri-socket={nri_socket}",
            f"--control-socket={self.control}",
            f"--metrics-socket={self.metrics_socket}",
            f"--state-dir={directory / 'state'}",
            "--log-level=debug",
            *arguments,
        ]
        self.stopped_well = False
        """Ended by SIGTERM with exit code 0: then it has removed its sockets."""
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: dict[tuple[int, int], leftovers.Process] = {}

    def write_config(self, config: Mapping[str, Any]) -> None:
        """JSON is YAML. One rename, as a ConfigMap does it."""
        fresh = self.config.with_suffix(".new")
        fresh.write_text(json.dumps(config, indent=2))
        fresh.replace(self.config)

    # Life

    def start(self, *, wait: bool = True) -> PluginProcess:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self.wait_registered()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """-9, as the OOM killer does it; what it had started must end by itself."""
        self.note_helpers()
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        if self._process is None:
            return 0
        if self.alive():
            self.note_helpers()
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self.stopped_well = self._process.wait(15 * PATIENCE) == 0
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise Timeout(f"the plugin did not end within 15 s of SIGTERM\n{self.log_tail()}") from None
        return self._process.wait()

    def wait_registered(self, timeout_s: float = 30.0) -> None:
        try:
            until("the plugin's registration", self.registered, timeout_s)
        except Timeout as error:
            raise Timeout(f"{error}\n{self.log_tail()}") from None

    # Its helpers (zygote, workers)

    def note_helpers(self) -> list[leftovers.Process]:
        """Who it has started, now; remembered for ``left``."""
        found = leftovers.descendants(self.pid)
        self._seen |= {(process.pid, process.started): process for process in found}
        return found

    def left(self, timeout_s: float = 5.0) -> list[str]:
        """After its end: processes of it that are still there once ``timeout_s`` has passed."""
        if self._process is None:
            return []
        end = time.monotonic() + timeout_s * PATIENCE
        while True:
            found = [f"{process.pid}: {process.command}" for process in self._seen.values() if process.alive()]
            found += [f"{process.pid}: {process.command}" for process in leftovers.descendants(self.pid)]
            if not found or time.monotonic() > end:
                return found
            time.sleep(0.02)

    # Asking

    def registered(self) -> bool:
        if not self.alive():
            raise RuntimeError(f"the plugin ended by itself:\n{self.log_tail()}")
        try:
            return bool(self.status()["connection"]["state"] == "registered")
        except (OSError, ValueError):
            return False

    def ask(self, **request: Any) -> dict[str, Any]:
        """One line on the control socket; the last line of the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10 * PATIENCE)
            connection.connect(str(self.control))
            connection.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = json.loads(line)
                    if answer.get("done"):
                        return dict(answer)
        raise ConnectionResetError("the control socket closed without an answer")

    def status(self) -> dict[str, Any]:
        return self.ask(op="status")

    def entry(self, container_id: str) -> dict[str, Any] | None:
        """What status says of a container, whether it still runs or is remembered."""
        status = self.status()
        for entry in [*status["containers"], *reversed(status["recent"])]:
            if entry["id"] == container_id:
                return dict(entry)
        return None

    def outcome(self, container_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """The entry of a container, once its warm-up has ended."""

        def look() -> dict[str, Any] | None:
            entry = self.entry(container_id)
            return entry if entry is not None and entry["state"] in ENDED else None

        try:
            return dict(until("the warm-up's end", look, timeout_s))
        except Timeout as error:
            raise Timeout(f"{error}: {self.entry(container_id)}\n{self.log_tail()}") from None

    def metrics(self) -> dict[str, float]:
        """Series -> value, as a scrape reads them."""
        connection = http.client.HTTPConnection("localhost", timeout=10)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.metrics_socket))
        try:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        finally:
            connection.close()
        series = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in series}

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""
