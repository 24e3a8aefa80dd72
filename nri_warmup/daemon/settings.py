"""Where the configuration in force comes from: the operator's file, the runtime's text, or the built-in defaults.

A bad new file keeps the old configuration, and so does a file that is gone: an editor, a package upgrade or a ConfigMap
takes it away for a moment. What was refused, and why, is kept for ``status``.
"""

from __future__ import annotations

import os
from pathlib import Path

from nri_warmup.config import default_config
from nri_warmup.daemon import logs
from nri_warmup.errors import ConfigError
from nri_warmup.model.profile import Config
from nri_warmup.observe.metrics import Registry as Metrics

_RUNTIME = "configuration from the container runtime"


class Settings:
    """``explicit``: the operator named the file, so it must exist at the start. Raises ConfigError for a bad one."""

    def __init__(self, path: str, *, explicit: bool, metrics: Metrics) -> None:
        self._path = path
        self._metrics = metrics
        self._stamp = _stamp(path)
        self._must_exist = explicit or self._stamp is not None
        self._from_runtime = False
        self.error = ""
        """Why the last change was refused; empty while what is in force is what is written."""
        self.config = self._read()

    def _read(self) -> Config:
        if not self._must_exist:
            return default_config()
        from nri_warmup.daemon.configfile import read_config  # brings in YAML

        return read_config(self._path)

    def from_runtime(self, text: str) -> Config | None:
        """The text that the runtime has for a launched plugin; None where it is refused."""
        from nri_warmup.daemon.configfile import parse_config

        try:
            config = parse_config(text, source=_RUNTIME)
        except ConfigError as error:
            self._refuse(error)
            return None
        self._from_runtime = True
        return self._accept(config)

    def changed(self) -> bool:
        """Whether the file's stamp differs from the one last looked at. Nothing can change what the runtime gave."""
        return not self._from_runtime and _stamp(self._path) != self._stamp

    def reload(self) -> Config | None:
        """The file as it is now; None where it is refused, or where the configuration is not from a file."""
        if self._from_runtime:
            logs.info("nothing to reload: the configuration comes from the container runtime")
            return None
        self._stamp = _stamp(self._path)
        self._must_exist = self._must_exist or self._stamp is not None
        try:
            return self._accept(self._read())
        except ConfigError as error:
            self._refuse(error)
            return None

    def _accept(self, config: Config) -> Config:
        self.config, self.error = config, ""
        self._metrics.inc("nri_warmup_config_reloads_total", result="ok")
        self._metrics.set("nri_warmup_config_stale", 0)
        logs.info("configuration read", source=config.source, profiles=len(config.profiles))
        return config

    def _refuse(self, error: ConfigError) -> None:
        self.error = str(error)
        self._metrics.inc("nri_warmup_config_reloads_total", result="failed")
        self._metrics.set("nri_warmup_config_stale", 1)
        logs.warning("configuration kept as it was; the new one is refused", error=error)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(Path(path))
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
