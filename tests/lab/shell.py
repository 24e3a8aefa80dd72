"""``python -m tests.lab.shell [1.7|2.1|2.4]``: a shell beside a running containerd; it ends with the shell.

In it ``crictl`` and ``ctr`` speak to that containerd, and the plugin runs with the built-in configuration:
``nri-warmup status`` answers. The image ``localhost/probe:1`` and a model in $LAB/models are there to play with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lab import pages
from tests.lab.containerd import Containerd
from tests.lab.plugin import PluginProcess
from tests.lab.store import cri_tool, probe_binary


def main() -> None:
    slot = sys.argv[1] if len(sys.argv) > 1 else "2.4"
    with Containerd(slot) as runtime:
        runtime.add_image("localhost/probe:1", {"probe": probe_binary()}, directories=["models", "sync"])
        pages.make_model(runtime.directory / "models" / "model.bin", 64 << 20)
        plugin = PluginProcess(runtime.nri_socket, runtime.directory / "plugin", {}).start()
        bins = [runtime.binaries.directory, cri_tool("crictl").resolve().parent, Path(sys.executable).parent]
        environment = {
            "PATH": ":".join([*map(str, bins), os.environ.get("PATH", "")]),
            "CONTAINER_RUNTIME_ENDPOINT": f"unix://{runtime.socket}",
            "IMAGE_SERVICE_ENDPOINT": f"unix://{runtime.socket}",
            "CONTAINERD_ADDRESS": str(runtime.socket),
            "CONTAINERD_NAMESPACE": "k8s.io",
            "LAB": str(runtime.directory),
            "CONTROL": str(plugin.control),
        }
        print(f"containerd {runtime.version} in {runtime.directory}; nri-warmup status --control-socket $CONTROL")
        try:
            subprocess.run([os.environ.get("SHELL", "/bin/bash")], env=os.environ | environment, check=False)
        finally:
            plugin.stop()


if __name__ == "__main__":
    main()
