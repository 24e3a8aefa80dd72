"""Whether the runtime's configuration forbids plugins to inject OCI hooks. NRI itself does not tell.

containerd 2.2 and later, and CRI-O, have a built-in validator with ``reject_oci_hook_adjustment``: with it every
creation that we add a hook to fails. So the files are read that the running runtime was started with. Which process
that is the kernel says (SO_PEERCRED of the NRI socket): a process of a tenant may call itself containerd, and what it
names on its command line is never opened. What cannot be found or read forbids nothing; ``hookhealth.py`` then learns
from the first refusal.
"""

from __future__ import annotations

import glob
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nri_warmup.errors import KernelError
from nri_warmup.kernel.root import Root

_MAX_FILES = 200
_MAX_BYTES = 1 << 20
_NRI_PLUGIN = "io.containerd.nri.v1.nri"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How a runtime is called, where its configuration is, and what is said in it."""

    program: str
    config: str
    directory: str = ""
    options: tuple[str, ...] = ("-c", "--config")
    directory_options: tuple[str, ...] = ()


_CONTAINERD = _Kind(program="containerd", config="/etc/containerd/config.toml")
_CRIO = _Kind(
    program="crio",
    config="/etc/crio/crio.conf",
    directory="/etc/crio/crio.conf.d",
    directory_options=("-d", "--config-dir"),
)
_KINDS = {"containerd": _CONTAINERD, "cri-o": _CRIO, "crio": _CRIO}


def read_hook_veto(root: Root, runtime_name: str, pid: int) -> str:
    """Why hooks must not be injected: "" where nothing known forbids them. Never raises. ``pid``: Runtime.pid."""
    kind = _KINDS.get(runtime_name)
    if kind is None:
        return ""
    command = _command(root, kind, pid)
    if command is None:
        return ""
    prefix = root.resolve("").rstrip("/")
    files = _files(prefix, kind, command)
    settings = _merged(kind, prefix, files)
    if settings.get("enabled", False) is True and settings.get("reject", False) is True:
        names = ", ".join(files)
        return f"{runtime_name} is configured to reject hooks from plugins (reject_oci_hook_adjustment in {names})"
    return ""


def _command(root: Root, kind: _Kind, pid: int) -> Sequence[str] | None:
    """The runtime's command line; None where its files are not the ones that we see (another mount namespace)."""
    try:
        if pid <= 0 or root.read_text(f"proc/{pid}/comm").strip() != kind.program:
            return ()
        if root.read_link(f"proc/{pid}/ns/mnt") != root.read_link("proc/self/ns/mnt"):
            return None
        return root.read_text(f"proc/{pid}/cmdline").rstrip("\0").split("\0")
    except KernelError:
        return None


def _files(prefix: str, kind: _Kind, command: Sequence[str]) -> list[str]:
    """Configuration files in the order in which a later one overrides an earlier one."""
    main = _option(command, kind.options) or kind.config
    found = [main]
    directory = _option(command, kind.directory_options)
    if directory is None:
        directory = kind.directory
    if directory:
        found += sorted(_glob(prefix, f"{directory}/*"))
    if kind is _CONTAINERD:
        for path in found:  # imports may import: the list grows while it is walked
            if len(found) > _MAX_FILES:
                break
            imports = _load(prefix + path).get("imports", [])
            for pattern in imports if isinstance(imports, list) else []:
                absolute = os.path.join(os.path.dirname(path), str(pattern))
                found += [new for new in sorted(_glob(prefix, absolute)) if new not in found]
    return found


def _glob(prefix: str, pattern: str) -> list[str]:
    return [path[len(prefix) :] for path in glob.glob(glob.escape(prefix) + pattern)][:_MAX_FILES]


def _option(command: Sequence[str], names: tuple[str, ...]) -> str | None:
    """Its value on a command line; None where it is not given (CRI-O's ``-d ""`` means no directory at all)."""
    for index, word in enumerate(command):
        name, given, value = word.partition("=")
        if name in names:
            return value if given else next(iter(command[index + 1 :]), "")
    return None


def _load(path: str) -> dict[str, Any]:
    """A regular file of bounded size that belongs to root; anything else is an empty one. Never waits for a writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return {}
    with open(fd, "rb") as stream:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != 0:
            return {}
        try:
            data = stream.read(_MAX_BYTES + 1)
            return tomllib.loads(data.decode()) if len(data) <= _MAX_BYTES else {}
        except (OSError, ValueError, RecursionError):
            return {}


def _merged(kind: _Kind, prefix: str, files: Sequence[str]) -> dict[str, object]:
    """``enabled`` and ``reject`` as the last file that says them has them."""
    settings: dict[str, object] = {}
    for path in files:
        settings |= _settings(kind, _load(prefix + path))
    return settings


def _settings(kind: _Kind, content: Mapping[str, Any]) -> dict[str, object]:
    if kind is _CONTAINERD:
        nri = _table(_table(content.get("plugins")).get(_NRI_PLUGIN))
        validator = _table(nri.get("default_validator"))
        keys = {"enabled": "enable", "reject": "reject_oci_hook_adjustment"}
    else:
        nri = _table(_table(content.get("crio")).get("nri"))
        validator = _table(nri.get("default_validator"))
        keys = {
            "enabled": "nri_enable_default_validator",
            "reject": "nri_validator_reject_oci_hook_adjustment",
        }
    return {ours: validator[theirs] for ours, theirs in keys.items() if theirs in validator}


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
