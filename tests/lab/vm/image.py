"""The guest's disk: a Debian tree made by mmdebstrap, with packages for the guest's own Python, as one ext4 file.

Kept in the cache by a hash of everything it is made from. The archive is the one that this machine's own apt sources
name.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.store import ROOT, cache_directory, program

HERE = Path(__file__).resolve().parent
INSIDE = HERE / "inside"
KERNEL_MODULES = ("virtio_pci", "virtio_blk", "ext4")
"""All that the initial ramdisk has to load: a smaller one is unpacked sooner, and emulation is slow."""
DISK_GIB = 8
TEST_PACKAGES = ("grpcio", "pytest")
"""Of the package's development tools, those that tests inside need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    suite: str
    slot: str
    directory: Path

    @property
    def disk(self) -> Path:
        return self.directory / "disk.img"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"


def description() -> dict[str, Any]:
    return tomllib.loads((HERE / "image.toml").read_text())


def suites() -> list[str]:
    return list(description()["suites"])


def image(suite: str) -> Image:
    """Built when there is none yet; others of the same suite are removed then."""
    home = cache_directory() / "vm"
    found = Image(suite=suite, slot=description()["suites"][suite]["slot"], directory=home / f"{suite}-{_hash(suite)}")
    if not found.initrd.exists():
        home.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        print(f"vm: building the {suite} image (two minutes or so)", flush=True)
        _build(found)
        for other in home.glob(f"{suite}-*"):
            if other != found.directory:
                shutil.rmtree(other)
        print(f"vm: built {found.directory.name} in {time.monotonic() - began:.0f} s", flush=True)
    return found


def _hash(suite: str) -> str:
    parts = [HERE / "image.toml", HERE / "image.py", INSIDE / "lab.service", INSIDE / "autologin.conf"]
    content = b"\0".join([suite.encode(), *requirements(), *(part.read_bytes() for part in parts)])
    return hashlib.sha256(content).hexdigest()[:12]


def requirements() -> list[bytes]:
    """What the package needs, and what its tests inside need, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = [line for line in project["optional-dependencies"]["dev"] if _name(line) in TEST_PACKAGES]
    return [line.encode() for line in (*project["dependencies"], *tools)]


def _name(requirement: str) -> str:
    return requirement.split(">")[0].split("=")[0].split("<")[0].strip()


def _build(wanted: Image) -> None:
    fresh = wanted.directory.with_suffix(f".{os.getpid()}")
    tree = fresh / "root"
    fresh.mkdir()
    try:
        _debootstrap(wanted.suite, tree, fresh / "log")
        _furnish(tree)
        _python(tree, fresh / "log")
        for source, target in (("vmlinuz", "vmlinuz"), ("initrd.img", "initrd.img")):
            [path] = (tree / "boot").glob(f"{source}-*")
            shutil.move(path, fresh / target)
        _versions(tree)
        _run(["truncate", "-s", f"{DISK_GIB}G", fresh / "disk.img"], fresh / "log")
        _run([program("mke2fs"), "-q", "-t", "ext4", "-d", tree, fresh / "disk.img"], fresh / "log")
        shutil.rmtree(tree)
        fresh.rename(wanted.directory)
    except BaseException:
        _run(["rm", "-rf", "--one-file-system", fresh], None)
        raise


def _debootstrap(suite: str, tree: Path, log: Path) -> None:
    modules = " ".join(KERNEL_MODULES)
    initramfs = (
        'mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d" && '
        'echo MODULES=list > "$1/etc/initramfs-tools/conf.d/lab" && '
        f'printf "%s\\n" {modules} > "$1/usr/share/initramfs-tools/modules.d/lab"'
    )
    options = [
        "--variant=minbase",
        f"--include={','.join(description()['packages'])}",
        '--aptopt=Acquire::Check-Valid-Until "false"',
        f"--essential-hook={initramfs}",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
    ]
    _run([program("mmdebstrap"), *options, suite, tree, f"deb {_signed_by()} {_archive()} {suite} main"], log)


def _archive() -> str:
    """The Debian archive of this machine's own apt sources, as apt itself understands them."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    form = ["--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    asked = subprocess.run(["apt-get", "indextargets", *form], capture_output=True, text=True, check=True).stdout
    for line in asked.splitlines():
        uri, codename, component = line.split(" ")
        if codename == release.get("VERSION_CODENAME", "").strip('"') and component == "main":
            return uri
    raise RuntimeError("found no Debian archive among this machine's apt sources")


def _signed_by() -> str:
    for kind in ("pgp", "gpg"):
        key = Path(f"/usr/share/keyrings/debian-archive-keyring.{kind}")
        if key.exists():
            return f"[signed-by={key}]"
    return ""


def _furnish(tree: Path) -> None:
    units = tree / "etc/systemd/system"
    shutil.copy(INSIDE / "lab.service", units / "lab.service")
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants" / "lab.service").symlink_to("../lab.service")
    # Tests start the suite's containerd with a configuration of theirs; nothing else has to run.
    for unit in (
        "containerd.service",
        "podman.service",
        "podman.socket",
        "podman-restart.service",
        "e2scrub_reap.service",
        *(f"{name}.timer" for name in ("apt-daily", "apt-daily-upgrade", "dpkg-db-backup", "e2scrub_all", "fstrim")),
    ):
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    getty = units / "serial-getty@ttyS0.service.d"
    getty.mkdir()
    shutil.copy(INSIDE / "autologin.conf", getty)
    (tree / "etc/fstab").write_text("/dev/vda / ext4 defaults 0 1\n")
    (tree / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    # Otherwise each boot takes itself for the first after an upgrade, and builds tables that take a minute.
    for directory in ("etc", "var"):
        (tree / directory / ".updated").touch()


def _python(tree: Path, log: Path) -> None:
    """A virtual environment at /opt/lab/venv: wheels fetched by this machine's pip for the guest's Python."""
    _run(["chroot", tree, "python3", "-m", "venv", "--without-pip", "/opt/lab/venv"], log)
    [site] = tree.glob("opt/lab/venv/lib/python3.*/site-packages")
    version = site.parent.name.removeprefix("python")
    platforms = [f"--platform={kind}_x86_64" for kind in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    wanted = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}", *platforms]
    _run([*pip, *wanted, "--target", site, *(line.decode() for line in requirements())], log)
    (site / "repo.pth").write_text("/repo\n")
    script = tree / "opt/lab/venv/bin/nri-warmup"
    script.write_text(
        "#!/opt/lab/venv/bin/python\nimport sys\nfrom nri_warmup.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    _run(
        ["chroot", tree, "/opt/lab/venv/bin/python", "-m", "compileall", "-q", str(Path("/") / site.relative_to(tree))],
        log,
    )


def _versions(tree: Path) -> None:
    names = ("linux-image-amd64", "systemd", "containerd", "runc", "crun", "python3")
    form = ["dpkg-query", "-W", "-f", "${Package} ${Version}\\n", *names]
    shown = subprocess.run(["chroot", tree, *form], capture_output=True, text=True, check=False).stdout
    print("".join(f"vm:   {line}\n" for line in shown.splitlines()), end="", flush=True)


def _run(command: Sequence[str | Path], log: Path | None) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    words = ["nice", "-n", "10", *(str(word) for word in command)]
    done = subprocess.run(
        words, env=os.environ | {"PATH": path}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    if log is not None:
        with log.open("a") as out:
            out.write(f"$ {' '.join(words)}\n{done.stdout}")
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-4000:]}")
