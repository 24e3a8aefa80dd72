"""One real containerd with root, state, sockets, NRI and pods' cgroup parent of its own. Several run side by side.

    with Containerd("2.4") as runtime:
        runtime.add_image("localhost/probe:1", {"probe": probe_binary()})
        pod = runtime.cri.run_pod("p", labels={"model": "yes"})
        container = runtime.cri.run(pod, "main", "localhost/probe:1", ["/probe", "say", "hello"])

What such a containerd differs in from an installed one: ``restrict_oom_score_adj`` (a container's -998 needs
CAP_SYS_RESOURCE, which a sandbox of a CI may lack), no AppArmor, no unprivileged ports and pings (sysctls cannot be set
in the host's network namespace), and a pause image made here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from tests.lab import leftovers
from tests.lab.cri import Cri, until
from tests.lab.image import write_image
from tests.lab.store import containerd_binaries, program, table

PAUSE = "localhost/lab-pause:1"
_UNUSED = [
    *(f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "zfs", "devmapper", "blockfile", "erofs")),
    "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
]


class Containerd:
    """``slot`` as in store.SLOTS. ``handlers``: further runtime handlers, name -> path of an OCI runtime.
    ``systemd_cgroup``: systemd makes the containers' cgroups (scopes in a slice a pod), as on most nodes."""

    def __init__(
        self,
        slot: str,
        *,
        handlers: Mapping[str, Path] | None = None,
        nri: Mapping[str, object] | None = None,
        base: Path | None = None,
        systemd_cgroup: bool = False,
    ) -> None:
        self.slot = slot
        self.binaries = containerd_binaries(slot)
        self.name = "containerd"
        self.version = self.binaries.version
        # Not below /tmp where that may be a tmpfs: there a file can neither be evicted nor read from a disk. Short: a
        # unix socket's path has at most 107 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix=f"nriw-{slot}-", dir=base or "/var/tmp"))
        self.directory.chmod(0o711)  # the root of a user namespace passes through
        self._systemd_cgroup = systemd_cgroup
        name = f"nri-warmup-lab-{os.getpid()}-{slot.replace('.', '')}-{self.directory.name[-4:]}"
        # A dash in a slice's name is a level of the tree.
        self.cgroup_parent = f"/{name.replace('-', '')}.slice" if systemd_cgroup else f"/{name}"
        self.socket = self.directory / "containerd.sock"
        self.nri_socket = self.directory / "nri.sock"
        self.log = self.directory / "log"
        self.cri = Cri(self.socket, logs=self.directory / "pods", cgroup_parent=self.cgroup_parent)
        self._handlers = {"runc": program("runc", hint="tests/lab/setup.sh demo"), **(handlers or {})}
        self._nri = dict(nri or {})
        self._process: subprocess.Popen[bytes] | None = None

    # Life

    def __enter__(self) -> Containerd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it and wait until CRI answers ready; then make sure of the pause image."""
        for name in ("nri/plugins", "nri/conf.d", "cni"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "cni" / "10-lab.conflist").write_text(json.dumps(self._network()))
        config = self.directory / "config.toml"
        config.write_text(self._config())
        path = f"{self.binaries.directory}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program("setpriv"), "--pdeathsig", "TERM", self.binaries.directory / "containerd", "-c", config],
                env=os.environ | {"PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(f"containerd {self.slot}", self._answers, 60)
        if PAUSE not in self.cri.images():
            self.add_image(
                PAUSE,
                {"bin/busybox": program("busybox", hint="tests/lab/setup.sh demo")},
                config={"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]},
            )

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"containerd {self.slot} ended at its start:\n{self.log_tail()}")
        try:
            return self.cri.ready(timeout_s=2)
        except grpc.RpcError:
            return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End containerd only: pods go on, as when a node's runtime is upgraded."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.stop(how)
        self.start()

    def close(self) -> None:
        """Remove all pods, end it, and leave nothing behind."""
        try:
            if self._process is not None:
                self.cri.remove_all()
        except grpc.RpcError:
            pass  # it may be dead: that is for the test to say, here only the cleaning counts
        finally:
            self.stop()
            self.cri.close()
            self._sweep()

    def _sweep(self) -> None:
        for process in self.shims():
            for child in [*leftovers.descendants(process.pid), process]:
                if child.alive():
                    os.kill(child.pid, signal.SIGKILL)
        until("the shims' end", lambda: not self.shims(), 20)
        for point in leftovers.mounts_below(self.directory):
            subprocess.run(["umount", "-l", point], check=False)
        if self._systemd_cgroup:
            subprocess.run(["systemctl", "stop", self.cgroup_parent.strip("/")], check=False)
        until("empty cgroups", lambda: leftovers.remove_cgroups(self.cgroup_parent), 20)
        shutil.rmtree(self.directory)

    # Looking

    def shims(self) -> list[leftovers.Process]:
        return [p for p in leftovers.processes() if "containerd-shim" in p.command and str(self.socket) in p.command]

    def left_of_pods(self) -> list[str]:
        """Once all pods are removed: what is still there of them."""
        found = [f"process {shim.pid}: {shim.command}" for shim in self.shims()]
        found += [f"cgroup {path}" for path in leftovers.pods_below(self.cgroup_parent)]
        return found + [f"mount {point}" for point in leftovers.mounts_below(self.directory)]

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    # Images

    def add_image(
        self,
        name: str,
        files: Mapping[str, Path | bytes],
        *,
        links: Mapping[str, str] | None = None,
        directories: Sequence[str] = (),
        config: Mapping[str, object] | None = None,
    ) -> None:
        archive = self.directory / "image.tar"
        write_image(archive, name, files, links=links, directories=directories, config=config)
        self.ctr("images", "import", str(archive))
        archive.unlink()
        until(f"image {name}", lambda: name in self.cri.images(), 20)

    def stored(self, path: str) -> list[Path]:
        """The real files of that path in unpacked image layers."""
        return list(self.directory.glob(f"root/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/{path}"))

    def ctr(self, *arguments: str) -> str:
        command = [str(self.binaries.directory / "ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    # Configuration

    def _config(self) -> str:
        at = self.directory
        version = self.binaries.config_version
        unused = [name for name in _UNUSED if version == 3 or "erofs" not in name]
        tables = [
            table(
                "",
                version=self.binaries.config_version,
                root=f"{at}/root",
                state=f"{at}/state",
                disabled_plugins=unused,
            ),
            table("grpc", address=str(self.socket)),
            table('plugins."io.containerd.internal.v1.opt"', path=f"{at}/opt"),
            table('plugins."io.containerd.nri.v1.nri"', **(self._nri_defaults() | self._nri)),
            *(self._cri_version_2() if version == 2 else self._cri_version_3()),
        ]
        return "\n\n".join(tables) + "\n"

    def _network(self) -> dict[str, object]:
        """For pods with a network of their own: a veth pair to the host, addresses hardly another lab uses."""
        third = int.from_bytes(self.directory.name[-4:].encode(), "big") % 250
        address = {"type": "host-local", "dataDir": f"{self.directory}/addresses", "subnet": f"10.213.{third}.0/24"}
        return {"cniVersion": "0.4.0", "name": "lab", "plugins": [{"type": "ptp", "ipam": address}]}

    def _nri_defaults(self) -> dict[str, object]:
        return {
            "disable": False,
            "socket_path": str(self.nri_socket),
            "plugin_path": f"{self.directory}/nri/plugins",
            "plugin_config_path": f"{self.directory}/nri/conf.d",
        }

    def _cri_version_2(self) -> list[str]:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return [
            table(cri, sandbox_image=PAUSE, restrict_oom_score_adj=True, disable_apparmor=True),
            table(f"{cri}.cni", bin_dir="/usr/lib/cni", conf_dir=f"{self.directory}/cni"),
            table(f"{cri}.containerd", snapshotter="overlayfs", default_runtime_name="runc"),
            *self._runtimes(f"{cri}.containerd.runtimes"),
        ]

    def _cri_version_3(self) -> list[str]:
        images, runtime = 'plugins."io.containerd.cri.v1.images"', 'plugins."io.containerd.cri.v1.runtime"'
        return [
            table(images, snapshotter="overlayfs"),
            table(f"{images}.pinned_images", sandbox=PAUSE),
            table(
                runtime,
                restrict_oom_score_adj=True,
                disable_apparmor=True,
                enable_unprivileged_ports=False,
                enable_unprivileged_icmp=False,
            ),
            table(f"{runtime}.cni", bin_dirs=["/usr/lib/cni"], conf_dir=f"{self.directory}/cni"),
            table(f"{runtime}.containerd", default_runtime_name="runc"),
            *self._runtimes(f"{runtime}.containerd.runtimes"),
        ]

    def _runtimes(self, prefix: str) -> list[str]:
        tables = []
        for name, path in self._handlers.items():
            tables.append(table(f"{prefix}.{name}", runtime_type="io.containerd.runc.v2"))
            tables.append(table(f"{prefix}.{name}.options", BinaryName=str(path), SystemdCgroup=self._systemd_cgroup))
        return tables
