"""One boot: QEMU's arguments, the folder shared with the guest, the wait for its end, and what came out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.store import LAB, ROOT, cache_directory, containerd_binaries, probe_binary, program
from tests.lab.vm.image import HERE, INSIDE, Image

EMULATOR_FAULT = "Oops: int3"
"""QEMU's emulation on several threads may kill a guest with this when the kernel switches a static key under load: a
fault of the emulator. Such a guest is booted once more."""
KERNEL_ARGUMENTS = (
    "root=/dev/vda rw console=ttyS0 psi=1 loglevel=5 oops=panic panic=-1 systemd.show_status=0 "
    "mitigations=off no5lvl audit=0"  # what emulation pays dear for and no test looks at
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """``tests``: what pytest is given inside. ``seconds``: for the tests; the boot itself has 240 more, at most.
    ``commit``: what is tested; empty for the working tree."""

    image: Image
    topology: str
    driver: str
    tests: tuple[str, ...] = ("tests/vm",)
    seconds: int = 1500
    node: bool = False
    shell: bool = False
    no_skip: bool = True
    commit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """``code``: pytest's, or None where the guest did not come to say one. ``out``: what it left behind."""

    code: int | None
    out: Path
    seconds: float
    why: str = ""


def topologies() -> dict[str, Any]:
    return tomllib.loads((HERE / "topologies.toml").read_text())


def run(boot: Boot, out: Path) -> Ended:
    """Boot, run, power off; once more where the emulator killed it."""
    ended = _run_once(boot, out)
    if ended.code is None and EMULATOR_FAULT in (out / "serial.log").read_text(errors="replace"):
        print(f"vm: the guest died of the emulator's {EMULATOR_FAULT!r} after {ended.seconds:.0f} s; booting once more")
        ended = _run_once(boot, out)
    return ended


def _run_once(boot: Boot, out: Path) -> Ended:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="nriw-vm-", dir="/var/tmp") as name:
        share = Path(name)
        _fill(boot, share)
        began = time.monotonic()
        serial = out / "serial.log"
        command = ["nice", "-n", "10", *arguments(boot, share, serial)]
        if boot.shell:
            subprocess.run(command, check=False)
            return Ended(code=0, out=out, seconds=time.monotonic() - began)
        limit = began + boot.seconds + min(240, boot.seconds)
        # Its temporary files: the disk as changed by this boot.
        guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | {"TMPDIR": "/var/tmp"})
        try:
            why = _follow(guest, share / "out" / "log", limit)
        finally:
            if guest.poll() is None:
                guest.kill()
            guest.wait()
        for path in (share / "out").iterdir():
            shutil.copy(path, out)
        rc = out / "rc"
        code = int(rc.read_text()) if rc.exists() and rc.read_text().strip() else None
        if code is None and not why:
            tail = serial.read_text(errors="replace").splitlines()[-30:] if serial.exists() else []
            why = "\n".join(["the guest ended without a result; the end of its console:", *tail])
        return Ended(code=code, out=out, seconds=time.monotonic() - began, why=why)


def _follow(guest: subprocess.Popen[bytes], log: Path, limit: float) -> str:
    """Show the guest's log as it grows until it is switched off; why it had to be, else an empty string."""
    shown = 0
    while True:
        ended = guest.poll() is not None
        if log.exists():
            with log.open("rb") as stream:
                stream.seek(shown)
                fresh = stream.read()
            shown += len(fresh)
            sys.stdout.write(fresh.decode(errors="replace"))
            sys.stdout.flush()
        if ended:
            return ""
        if time.monotonic() > limit:
            return "the guest did not end in time and was switched off"
        time.sleep(0.5)


def _fill(boot: Boot, share: Path) -> None:
    (share / "out").mkdir()
    (share / "out" / "log").touch()
    shutil.copy(INSIDE / "boot.sh", share)
    settings: Mapping[str, object] = {
        "MODE": "shell" if boot.shell else "test",
        "SUITE": boot.image.suite,
        "SLOT": boot.image.slot,
        "CGROUP_DRIVER": boot.driver,
        "TOPOLOGY": boot.topology,
        "TEST_SECONDS": boot.seconds,
        "NO_SKIP": int(boot.no_skip),
        "PYTEST_ARGS": shlex.join(boot.tests),
    }
    (share / "boot.env").write_text("".join(f"{key}={shlex.quote(str(value))}\n" for key, value in settings.items()))
    _pack(share / "repo.tar", boot.commit)
    cache = share / "cache"
    cache.mkdir()
    probe = probe_binary()
    shutil.copy2(probe, cache / "probe")
    shutil.copy2(LAB / "probe.c", cache / "probe.c")
    if boot.node:
        shutil.copytree(containerd_binaries("2.4").directory, cache / "containerd" / "2.4")
        (cache / "node").mkdir()
        shutil.copy2(cache_directory() / "kubelet" / "kubelet", cache / "node" / "kubelet")


def _pack(archive: Path, commit: str) -> None:
    """A commit, or the tree as it is without what git ignores."""
    if commit:
        subprocess.run(["git", "archive", "--format=tar", f"--output={archive}", commit], cwd=ROOT, check=True)
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    with tarfile.open(archive, "w") as tar:
        for name in sorted(set(listed.decode().split("\0")) - {""}):
            if (ROOT / name).is_symlink() or (ROOT / name).is_file():
                tar.add(ROOT / name, arcname=name, recursive=False)


def arguments(boot: Boot, share: Path, serial: Path) -> Sequence[str]:
    layout = topologies()[boot.topology]
    nodes, distances = layout["nodes"], layout["distances"]
    with_cpus = [node for node in nodes if "cpus" in node]
    cpus = 2 * len(with_cpus)
    numa: list[str] = []
    for number, node in enumerate(nodes):
        numa += ["-object", f"memory-backend-ram,id=m{number},size={node['memory_mib']}M"]
        own = f",cpus={node['cpus']}" if "cpus" in node else ""
        numa += ["-numa", f"node,nodeid={number}{own},memdev=m{number}"]
    for i, row in enumerate(distances):
        for j, value in enumerate(row):
            if i != j:
                numa += ["-numa", f"dist,src={i},dst={j},val={value}"]
    return [
        str(program("qemu-system-x86_64", hint="tests/lab/vm/setup.sh vm")),
        *("-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-machine", "q35"),
        *("-m", f"{sum(node['memory_mib'] for node in nodes)}M", "-smp", f"{cpus},sockets={len(with_cpus)},cores=2"),
        *numa,
        *("-kernel", str(boot.image.kernel), "-initrd", str(boot.image.initrd), "-append", KERNEL_ARGUMENTS),
        *("-drive", f"file={boot.image.disk},if=virtio,format=raw,cache=unsafe,snapshot=on"),
        *("-virtfs", f"local,path={share},mount_tag=share,security_model=none"),
        *("-display", "none", "-vga", "none", "-no-reboot", "-nodefaults", "-nic", "none"),
        *(("-serial", "mon:stdio") if boot.shell else ("-serial", f"file:{serial}", "-monitor", "none")),
    ]  # fmt: skip
