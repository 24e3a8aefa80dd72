"""Where things are on a host, unless options say otherwise."""

from __future__ import annotations

CONFIG = "/etc/nri-warmup/config.yaml"
NRI_SOCKET = "/var/run/nri/nri.sock"
CONTROL_SOCKET = "/run/nri-warmup/control.sock"
METRICS_SOCKET = "/run/nri-warmup/metrics.sock"
LEASE = "/run/nri-warmup/files.lock"
STATE_DIR = "/var/lib/nri-warmup"
LAUNCHER = "/usr/libexec/nri-warmup/nri-warmup-exec"
HOOK = "/usr/libexec/nri-warmup/nri-warmup-hook"
