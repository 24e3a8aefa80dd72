"""The plugin launched by the runtime itself: an executable in its plugin directory, configured by a file beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import MIB, PROBE
from tests.lab import leftovers, pages
from tests.lab.containerd import Containerd
from tests.lab.cri import Volume, until
from tests.lab.plugin import PluginProcess
from tests.lab.store import SLOTS, probe_binary

CONFIG: dict[str, Any] = {
    "profiles": {"launched": {"files": ["/models/**"]}},
    "selectors": [{"profile": "launched", "matchLabels": {"app": "llm"}}],
}


def _install(runtime: Containerd) -> PluginProcess:
    """What an operator puts there. The runtime gives it neither PATH nor HOME, and /dev/null as stdio."""
    view = PluginProcess(runtime.nri_socket, runtime.directory / "plugin", {})
    program = Path(sys.executable).with_name("nri-warmup")
    script = runtime.directory / "nri" / "plugins" / "90-nri-warmup"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"#!/bin/sh\nexec {program} run --control-socket={view.control} --metrics-socket={view.metrics_socket}"
        f" --state-dir={view.directory / 'state'} --log-file={view.log}\n"
    )
    script.chmod(0o755)
    config = runtime.directory / "nri" / "conf.d" / "90-nri-warmup.conf"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps(CONFIG))
    return view


def _launched(runtime: Containerd) -> leftovers.Process | None:
    return next((p for p in leftovers.processes() if p.parent == runtime.pid and "nri-warmup" in p.command), None)


@pytest.mark.parametrize("slot", SLOTS)
def test_the_runtime_launches_the_plugin(slot: str) -> None:
    runtime = Containerd(slot)
    try:
        plugin = _install(runtime)
        runtime.start()
        runtime.add_image(PROBE, {"probe": probe_binary()}, directories=["models"])
        process = until("the launched plugin", lambda: _launched(runtime), 20)
        model = pages.make_model(runtime.directory / "models" / "model.bin", 4 * MIB)
        pod = runtime.cri.run_pod("launched", labels={"app": "llm"})
        volumes = [Volume(target="/models", source=str(model.parent))]
        container = runtime.cri.run(pod, "server", PROBE, ["/probe", "sleep", "1000"], volumes=volumes)

        entry = plugin.outcome(container.id)

        assert entry["state"] == "done" and entry["profile"] == "launched", entry
        assert pages.resident_share(model) == 1.0
        assert "warm-up ended" in plugin.log.read_text()
        runtime.cri.remove_pod(pod)
        everyone = [process, *leftovers.descendants(process.pid)]
        runtime.stop()
        until("its end with the runtime's", lambda: not any(p.alive() for p in everyone), 10)
    finally:
        runtime.close()
