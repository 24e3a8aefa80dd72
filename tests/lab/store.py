"""Where setup.sh put things. Reads only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

LAB = Path(__file__).resolve().parent
ROOT = LAB.parents[1]

SLOTS = ("1.7", "2.1", "2.4")
"""containerd of trixie, of forky, and built from its Go module. A suite may have moved on: ask ``Binaries.version``."""


class NotInstalled(Exception):
    """Something of the lab is missing; the message says which command brings it."""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "nri-warmup-lab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A directory with containerd, its shim and ctr, and the version containerd itself gives."""

    directory: Path
    version: str

    @property
    def config_version(self) -> int:
        return 2 if self.version.startswith("1.") else 3


def containerd_binaries(slot: str) -> Binaries:
    directory = cache_directory() / "containerd" / slot
    if not (directory / "containerd").exists():
        raise NotInstalled(f"containerd {slot} is not in {cache_directory()}: run tests/lab/setup.sh test")
    text = subprocess.run([directory / "containerd", "--version"], capture_output=True, text=True, check=True).stdout
    version = next(word for word in text.split() if word.lstrip("v")[:1].isdigit())
    return Binaries(directory=directory.resolve(), version=version.lstrip("v"))


def program(name: str, *, hint: str = "tests/lab/setup.sh test") -> Path:
    """A program of the machine, also where PATH lacks the sbin directories."""
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise NotInstalled(f"no {name} here: run {hint}")
    return Path(found)


def cri_tool(name: str) -> Path:
    path = cache_directory() / "cri-tools" / name
    if not path.exists():
        raise NotInstalled(f"{name} is not in {cache_directory()}: run tests/lab/setup.sh critest")
    return path


def mapping_runc() -> Path:
    """A runc new enough for user namespaces with id-mapped mounts (1.2)."""
    path = cache_directory() / "runc" / "runc"
    if not path.exists():
        raise NotInstalled(f"no runc from its Go module in {cache_directory()}: run tests/lab/setup.sh test")
    return path.resolve()


def probe_binary() -> Path:
    """probe.c, compiled once for each version of its text."""
    source = LAB / "probe.c"
    out = cache_directory() / "probe"
    stamp = out.with_suffix(".c")
    if not out.exists() or not stamp.exists() or stamp.read_bytes() != source.read_bytes():
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = out.with_name(f"probe.{os.getpid()}")
        subprocess.run([program("gcc"), "-O2", "-Wall", "-static", "-o", fresh, source], check=True)
        fresh.replace(out)
        stamp.write_bytes(source.read_bytes())
    return out


def table(path: str, /, **values: object) -> str:
    """One TOML table of a runtime's configuration; JSON's scalars and lists are TOML's too."""
    lines = [f"[{path}]"] if path else []
    return "\n".join([*lines, *(f"{key} = {json.dumps(value)}" for key, value in values.items())])
