"""One real CRI-O with everything of its own, with the same face as ``Containerd``.

Debian has no CRI-O: it is taken where ``CRIO_BIN`` names one or ``crio`` is on PATH. Beside it: conmon, runc and skopeo
of the machine, and CRI-O's own pinns (``PINNS_BIN``, beside crio, or on PATH).
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
from tests.lab.store import NotInstalled, program, table

PAUSE = "localhost/lab-pause:1"


def crio_binary() -> Path | None:
    named = os.environ.get("CRIO_BIN")
    if named:
        return Path(named)
    found = shutil.which("crio", path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin")
    return Path(found) if found else None


class Crio:
    def __init__(self, *, base: Path | None = None) -> None:
        binary = crio_binary()
        if binary is None:
            raise NotInstalled("no crio on PATH and none in CRIO_BIN")
        self.binary = binary
        self.name = "crio"
        text = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = next(word for word in text.split() if word[:1].isdigit())
        beside = binary.with_name("pinns")
        named = os.environ.get("PINNS_BIN")
        self._pinns = Path(named) if named else beside if beside.exists() else program("pinns", hint="see PINNS_BIN")
        self.directory = Path(tempfile.mkdtemp(prefix="nriw-crio-", dir=base or "/var/tmp"))
        self.directory.chmod(0o711)
        self.cgroup_parent = f"/nri-warmup-lab-{os.getpid()}-crio-{self.directory.name[-4:]}"
        self.socket = self.directory / "crio.sock"
        self.nri_socket = self.directory / "nri.sock"
        self.log = self.directory / "log"
        self.cri = Cri(self.socket, logs=self.directory / "pods", cgroup_parent=self.cgroup_parent)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Crio:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        for name in ("nri/plugins", "nri/conf.d", "cni", "hooks.d", "ns", "exits", "attach"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        config = self.directory / "crio.conf"
        config.write_text(self._config())
        if not (self.directory / "root").exists():
            busybox = program("busybox", hint="tests/lab/setup.sh demo")
            self.add_image(PAUSE, {"bin/busybox": busybox})
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program("setpriv"), "--pdeathsig", "TERM", self.binary, "-c", config, "-d", ""],
                env=os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until("crio", self._answers, 60)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"crio ended at its start:\n{self.log_tail()}")
        try:
            return self.cri.ready(timeout_s=2)
        except grpc.RpcError:
            return False

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
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
        try:
            if self._process is not None:
                self.cri.remove_all()
        except grpc.RpcError:
            pass  # it may be dead: that is for the test to say, here only the cleaning counts
        finally:
            self.stop()
            self.cri.close()
            for monitor in self._monitors():
                for process in [*leftovers.descendants(monitor.pid), monitor]:
                    if process.alive():
                        os.kill(process.pid, signal.SIGKILL)
            until("the monitors' end", lambda: not self._monitors(), 20)
            for point in leftovers.mounts_below(self.directory):
                subprocess.run(["umount", "-l", point], check=False)
            until("empty cgroups", lambda: leftovers.remove_cgroups(self.cgroup_parent), 20)
            shutil.rmtree(self.directory)

    def _monitors(self) -> list[leftovers.Process]:
        return [p for p in leftovers.processes() if "conmon" in p.command and str(self.directory) in p.command]

    def left_of_pods(self) -> list[str]:
        found = [f"process {p.pid}: {p.command}" for p in self._monitors()]
        found += [f"cgroup {path}" for path in leftovers.pods_below(self.cgroup_parent)]
        return found + [
            f"mount {point}" for point in leftovers.mounts_below(self.directory) if not self._its_own(point)
        ]

    def _its_own(self, point: str) -> bool:
        """The graph driver's bind mount of its root, and images that were a volume: CRI-O keeps those mounted."""
        if point.endswith("/root/overlay"):
            return True
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        options = next((line for line in lines if line.split()[4] == point), "")
        return "/root/overlay/" in point and "upperdir=" not in options

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

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
        store = f"containers-storage:[overlay@{self.directory}/root+{self.directory}/runroot]{name}"
        command = [str(program("skopeo")), "copy", "--insecure-policy", f"oci-archive:{archive}", store]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"skopeo: {done.stdout}{done.stderr}")
        archive.unlink()

    def stored(self, path: str) -> list[Path]:
        """The real files of that path in unpacked image layers."""
        return list(self.directory.glob(f"root/overlay/*/diff/{path}"))

    def _config(self) -> str:
        at = self.directory
        crio = {"root": f"{at}/root", "runroot": f"{at}/runroot", "storage_driver": "overlay", "log_dir": f"{at}/logs"}
        crio |= {"version_file": f"{at}/version", "clean_shutdown_file": f"{at}/clean"}
        runtime = {
            "cgroup_manager": "cgroupfs",
            "conmon_cgroup": "pod",
            "default_runtime": "runc",
            "pinns_path": str(self._pinns),
            "namespaces_dir": f"{at}/ns",
            "hooks_dir": [f"{at}/hooks.d"],
            "container_exits_dir": f"{at}/exits",
            "container_attach_socket_dir": f"{at}/attach",
            "apparmor_profile": "unconfined",
            "seccomp_profile": "",
        }
        runc = {
            "runtime_path": str(program("runc")),
            "runtime_root": f"{at}/runc",
            "monitor_path": str(program("conmon")),
        }
        image = {"pause_image": PAUSE, "pause_command": "/bin/busybox sleep 2147483647"}
        nri = {"enable_nri": True, "nri_listen": str(self.nri_socket), "nri_plugin_dir": f"{at}/nri/plugins"}
        return "\n\n".join(
            (
                table("crio", **crio),
                table("crio.api", listen=str(self.socket)),
                table("crio.runtime", **runtime),
                table("crio.runtime.runtimes.runc", **runc),
                table("crio.image", signature_policy=f"{at}/policy.json", **image),
                table("crio.network", network_dir=f"{at}/cni", plugin_dirs=["/usr/lib/cni"]),
                table("crio.nri", nri_plugin_config_dir=f"{at}/nri/conf.d", **nri),
            )
        )
