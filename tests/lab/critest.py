"""critest (Kubernetes' conformance tests for CRI) on a lab's containerd, with a registry of our own on loopback."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.lab.containerd import Containerd
from tests.lab.cri import until
from tests.lab.image import write_image
from tests.lab.store import cri_tool, program

IMAGE = "critest:1"

SKIPPED = (
    "Image Manager",  # its images are on public registries
    "Image Consistency",
    "Image Volume",
    "Image Identifier",
    "Security Context",  # seccomp, AppArmor and users of images that are on public registries
    "SELinux",
    "AppArmor",
    "Networking",  # a web server's image, host ports
    "Streaming",  # likewise
)


class Registry:
    """docker-registry on a free port of loopback; runtimes take plain http from there."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="nriw-registry-", dir="/var/tmp"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = self._directory / "config.yml"
        store = {"filesystem": {"rootdirectory": str(self._directory / "blobs")}}
        config.write_text(json.dumps({"version": 0.1, "storage": store, "http": {"addr": self.address}}))
        with (self._directory / "log").open("wb") as log:
            command = [str(program("docker-registry", hint="tests/lab/setup.sh critest")), "serve", str(config)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("the registry", self._answers, 30)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError((self._directory / "log").read_text(errors="replace"))
        connection = http.client.HTTPConnection(self.address, timeout=2)
        try:
            connection.request("GET", "/v2/")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def push_busybox(self) -> str:
        """A busybox with all its applets, root and a few users; gives the name to pull it by."""
        busybox = program("busybox")
        applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
        archive = self._directory / "image.tar"
        write_image(
            archive,
            IMAGE,
            {
                "bin/busybox": busybox,
                "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
                "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
            },
            links={f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"},
            directories=["tmp", "root", "home", "var"],
            config={"Env": ["PATH=/bin"], "Cmd": ["sh"]},
        )
        name = f"{self.address}/{IMAGE}"
        copy = [str(program("skopeo", hint="tests/lab/setup.sh critest")), "copy", "--insecure-policy"]
        copy += ["--dest-tls-verify=false", f"oci-archive:{archive}", f"docker://{name}"]
        subprocess.run(copy, check=True, capture_output=True, text=True)
        return name

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Names of the specs that ran, and what came of each: passed or failed."""

    passed: frozenset[str]
    failed: frozenset[str]
    seconds: float


def run_critest(runtime: Containerd, image: str, *, focus: tuple[str, ...] = ()) -> Report:
    """All specs but SKIPPED; ``focus``: only those with one of these (regular expressions) in their names."""
    directory = runtime.directory / "critest"
    directory.mkdir(exist_ok=True)
    images = directory / "images.yaml"
    images.write_text(json.dumps({"defaultTestContainerImage": image, "webServerTestImage": image}))
    report = directory / "report.json"
    report.unlink(missing_ok=True)
    command = [
        str(cri_tool("critest")),
        f"-runtime-endpoint=unix://{runtime.socket}",
        f"-image-endpoint=unix://{runtime.socket}",
        f"-test-images-file={images}",
        f"-nri-socket={runtime.nri_socket}",
        f"-ginkgo.json-report={report}",
        "-ginkgo.no-color",
        "-ginkgo.seed=1",
        "-ginkgo.timeout=15m",
        f"-ginkgo.skip={'|'.join(SKIPPED)}",
    ]
    if focus:
        command.append(f"-ginkgo.focus={'|'.join(focus)}")
    with (directory / "log").open("wb") as log:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, cwd=directory)
    if not report.exists():
        raise RuntimeError(f"critest gave no report:\n{(directory / 'log').read_text(errors='replace')[-4000:]}")
    return _read(report)


def _read(report: Path) -> Report:
    found: dict[str, set[str]] = {"passed": set(), "failed": set()}
    seconds = 0.0
    for suite in json.loads(report.read_text()):
        seconds += suite["RunTime"] / 1e9
        for spec in suite["SpecReports"] or ():
            if spec["LeafNodeType"] != "It" or spec["State"] in ("skipped", "pending"):
                continue
            name = " ".join([*(spec["ContainerHierarchyTexts"] or ()), spec["LeafNodeText"]])
            found["passed" if spec["State"] == "passed" else "failed"].add(name)
    return Report(passed=frozenset(found["passed"]), failed=frozenset(found["failed"]), seconds=seconds)
