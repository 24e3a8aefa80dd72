"""The whole daemon as a process, in a directory of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nri_warmup.daemon.control import request
from tests.go.harness import DEADLINE_S

CONFIG = """\
profiles:
  - {name: model, files: ["/data/**"]}
  - {name: other, files: ["/srv/other/**"]}
selectors:
  - {profile: model, matchLabels: {example.com/serves: model}}
  - {profile: other, matchLabels: {example.com/serves: other}, containers: [server]}
"""


def daemon_command(directory: Path, *args: str) -> list[str]:
    """``nri-warmup run`` with everything of it below ``directory``."""
    return [
        sys.executable, "-m", "nri_warmup.cli.main", "run", "--config", f"{directory}/config.yaml",
        "--control-socket", f"{directory}/control.sock", "--metrics-socket", f"{directory}/metrics.sock",
        "--state-dir", f"{directory}/state", "--log-file", f"{directory}/daemon.log", *args,
    ]  # fmt: skip


class Daemon:
    def __init__(self, directory: Path, socket: Path, *args: str, config: str = CONFIG) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.log = directory / "daemon.log"
        (directory / "config.yaml").write_text(config)
        command = daemon_command(directory, "--nri-socket", str(socket), *args)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | {"NOTIFY_SOCKET": ""})

    @property
    def pid(self) -> int:
        return self.process.pid

    def status(self) -> dict[str, Any]:
        return request(f"{self.directory}/control.sock", {"op": "status"})

    def wait_status(self, what: str, good: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Polls the control socket until ``good(status)``; ``what`` says in a failure what was waited for."""
        end = time.monotonic() + DEADLINE_S
        status: dict[str, Any] = {}
        while time.monotonic() < end and self.process.poll() is None:
            try:
                status = self.status()
            except OSError:
                pass
            else:
                if good(status):
                    return status
            time.sleep(0.05)
        raise AssertionError(f"no {what}; last status {status}; log:\n{self.log.read_text()[-4000:]}")

    def wait_registered(self) -> dict[str, Any]:
        return self.wait_status("registration", lambda status: status["connection"]["state"] == "registered")

    def wait_exit(self) -> int:
        return self.process.wait(DEADLINE_S)

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """As an operator stops it; killed where that does not help."""
        try:
            self.kill(signal.SIGTERM)
        finally:
            self.kill()
