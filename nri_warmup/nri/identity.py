"""Who a plugin is and how it is connected: from options, else the environment, else the name of its own file.

A launched plugin is a file ``NN-name`` in the runtime's plugin directory. It gets no arguments and three variables:
NRI_PLUGIN_NAME, NRI_PLUGIN_IDX and NRI_PLUGIN_SOCKET, the number of an open file descriptor (always 3 so far).
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from dataclasses import dataclass

from nri_warmup.errors import ConfigError

DEFAULT_SOCKET = "/var/run/nri/nri.sock"

_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX = re.compile(r"[0-9]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """``index`` orders plugins, "00" first. ``launched_fd`` is the inherited socket, None for one that connects."""

    name: str
    index: str
    launched_fd: int | None = None

    def __post_init__(self) -> None:
        # The runtime answers a bad index with an error and keeps the useless connection: better to fail here.
        if not _INDEX.fullmatch(self.index):
            raise ConfigError(f"plugin index {self.index!r}: two digits, such as 10")
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"plugin name {self.name!r}: letters, digits and _.+- only")


def find_identity(
    *,
    name: str = "",
    index: str = "",
    environ: MutableMapping[str, str] | None = None,
    argv0: str = "",
    default_name: str = "",
    default_index: str = "",
) -> Identity:
    """The identity, each part from the first that has it. Takes the variables out of ``environ`` (default os.environ).

    Raises ConfigError where a part is nowhere or not allowed.
    """
    environment = os.environ if environ is None else environ
    env_name = environment.pop("NRI_PLUGIN_NAME", "")
    env_index = environment.pop("NRI_PLUGIN_IDX", "")
    env_socket = environment.pop("NRI_PLUGIN_SOCKET", "")
    if env_index:
        env_name = env_name.removeprefix(f"{env_index}-")  # NRI 0.3 put NN-name there
    file_index, file_name = parse_file_name(argv0)
    launched_fd: int | None = None
    if env_socket:
        if not env_socket.isdecimal():
            raise ConfigError(f"NRI_PLUGIN_SOCKET {env_socket!r}: the number of a file descriptor")
        launched_fd = int(env_socket)
    return Identity(
        name=name or env_name or file_name or default_name,
        index=index or env_index or file_index or default_index,
        launched_fd=launched_fd,
    )


def parse_file_name(argv0: str) -> tuple[str, str]:
    """(index, name) of a plugin's file, ``/opt/nri/plugins/10-logger`` or ``10-logger.py``; empty where it is none."""
    base = os.path.basename(argv0).removesuffix(".py")
    index, dash, name = base.partition("-")
    return (index, name) if dash and _INDEX.fullmatch(index) and _NAME.fullmatch(name) else ("", "")
