#!/usr/bin/env python3
"""Tell containers where their model lies: one annotation on the pod becomes environment variables and a read-only
mount.

    metadata:
      annotations:
        model.example.com/path: /srv/models/small

Run it beside the runtime (``./10-model-env.py --socket-path /var/run/nri/nri.sock``), or install it, executable and
with an absolute interpreter in its first line, as /opt/nri/plugins/10-model-env for the runtime to launch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from nri_warmup.nri import messages as m
from nri_warmup.nri.stub import Plugin, RuntimeInfo, run

LOG = logging.getLogger("model-env")
ANNOTATION = "model.example.com/path"
INSIDE = "/models"


class ModelEnv(Plugin):
    """Gives a container the model its pod names."""

    def configure(self, config: str, runtime: RuntimeInfo) -> None:
        LOG.info("talking to %s %s", runtime.name, runtime.version)

    def synchronize(self, pods: Sequence[m.PodSandbox], containers: Sequence[m.Container]) -> None:
        LOG.info("%d pods and %d containers run already", len(pods), len(containers))

    def create_container(self, pod: m.PodSandbox, container: m.Container) -> m.ContainerAdjustment | None:
        path = pod.annotations.get(ANNOTATION, "")
        if not path.startswith("/"):
            return None
        LOG.info("%s/%s/%s gets %s", pod.namespace, pod.name, container.name, path)
        return m.ContainerAdjustment(
            env=[m.KeyValue(key="MODEL_PATH", value=INSIDE)],
            mounts=[m.Mount(destination=INSIDE, source=path, type="bind", options=["rbind", "ro"])],
        )

    async def start_container(self, pod: m.PodSandbox, container: m.Container) -> None:
        if ANNOTATION in pod.annotations:
            LOG.info("%s starts as process %d", container.name, container.pid)


if __name__ == "__main__":
    sys.exit(run(ModelEnv()))
