#!/usr/bin/env python3
"""Builds the Go programs of the tests against one version of the runtime's own NRI library.

    build.py VERSION…     build what is not in the cache; prints one directory a version
    build.py --all        every released version
    build.py --pin VERSION…  write the resolved modules beside the sources (nri-VERSION.mod and .sum)

Each directory holds `nri-runtime` (a runtime without containers) and `nri-plugin` (a minimal plugin). Directories are
named after the content they were built from, so a second call costs nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = ("runtime", "plugin")
MODULE = "github.com/containerd/nri"
RELEASED = (
    ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.6.1", "0.7.0", "0.8.0", "0.9.0", "0.10.0", "0.11.0"]
    + ["0.12.0", "0.12.1", "0.12.2", "0.12.3", "0.12.4", "0.12.5"]
)  # fmt: skip
# Up to 0.10 the library builds only with the runtime-tools it was written for, and a module's own replace does not
# reach those who use it.
RUNTIME_TOOLS = "github.com/opencontainers/runtime-tools"
RUNTIME_TOOLS_OLD = "v0.0.0-20221026201742-946c877fa809"
GO_LANGUAGE = "1.24"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def tags(version: str) -> str:
    """Build tags that stand for what a version lacks."""
    found = ["nri_no_wasm"]
    if numbers(version) < (0, 6):
        found.append("nri_no_options")
    if numbers(version) < (0, 4):
        found.append("nri_no_context")
    return ",".join(found)


def find_go() -> str:
    """A Go that is new enough; ``go.sh`` puts one into this Python's environment where the machine has none."""
    done = subprocess.run([HERE.parent / "lab" / "go.sh", sys.prefix], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def go_version(go: str) -> str:
    return subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout.strip()


def sources() -> list[Path]:
    return sorted(path for program in PROGRAMS for path in (HERE / program).glob("*.go"))


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nri-warmup-lab" / "go"


def destination(version: str, go: str) -> Path:
    digest = hashlib.sha256(f"{version} {go_version(go)} {tags(version)}".encode())
    for path in [*sources(), HERE / f"nri-{version}.mod", HERE / f"nri-{version}.sum"]:
        if path.exists():
            digest.update(f"\n{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return cache_directory() / f"nri-{version}-{digest.hexdigest()[:16]}"


def prepare(version: str, go: str, work: Path) -> None:
    """Lays out a module in ``work``: pinned where the version is pinned, else resolved now."""
    for program in PROGRAMS:
        shutil.copytree(HERE / program, work / program)
    pinned = HERE / f"nri-{version}.mod"
    if pinned.exists():
        shutil.copy(pinned, work / "go.mod")
        shutil.copy(pinned.with_suffix(".sum"), work / "go.sum")
        return
    text = f"module nriharness\n\ngo {GO_LANGUAGE}\n\nrequire {MODULE} v{version}\n"
    if numbers(version) < (0, 11):
        text += f"\nreplace {RUNTIME_TOOLS} => {RUNTIME_TOOLS} {RUNTIME_TOOLS_OLD}\n"
    (work / "go.mod").write_text(text)
    run(go, work, "mod", "tidy", "-e")


def run(go: str, work: Path, *args: str) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    environment.setdefault("HOME", str(work))
    done = subprocess.run([go, *args], cwd=work, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"build.py: go {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")


def build(version: str, go: str) -> Path:
    target = destination(version, go)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / f".{version}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            work, out = Path(scratch) / "src", Path(scratch) / "out"
            work.mkdir()
            prepare(version, go, work)
            for program in PROGRAMS:
                run(
                    go,
                    work,
                    "build",
                    "-trimpath",
                    "-tags",
                    tags(version),
                    "-o",
                    str(out / f"nri-{program}"),
                    f"./{program}",
                )
            for old in target.parent.glob(f"nri-{version}-*"):
                shutil.rmtree(old)
            out.rename(target)
    return target


def pin(version: str, go: str) -> None:
    for suffix in (".mod", ".sum"):
        (HERE / f"nri-{version}{suffix}").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch) / "src"
        work.mkdir()
        prepare(version, go, work)
        shutil.copy(work / "go.mod", HERE / f"nri-{version}.mod")
        shutil.copy(work / "go.sum", HERE / f"nri-{version}.sum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--pin", action="store_true")
    options = parser.parse_args()
    versions = RELEASED if options.all else options.versions
    if unknown := set(versions) - set(RELEASED):
        parser.error(f"not a released version: {', '.join(sorted(unknown))} (known: {', '.join(RELEASED)})")
    go = find_go()
    for version in versions:
        if options.pin:
            pin(version, go)
        else:
            print(build(version, go), flush=True)


if __name__ == "__main__":
    main()
