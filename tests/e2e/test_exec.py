"""``exec:``: the operator's program runs in the container as its user, before its entrypoint, and cannot fail it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.bed import MIB, Bed
from tests.lab.cri import until
from tests.lab.plugin import PluginProcess
from tests.lab.store import ROOT, probe_binary
from tests.oci.bundle import compiled

LAUNCHER = ROOT / "hooks" / "nri-warmup-exec.c"
PREFAULT = Path(__file__).with_name("prefault.c")
LABELS = {"app": "llm"}
REGION = "/dev/shm/weights"
SAYS = ("resident", REGION, "sleep", "1000")


def plugin_with(bed: Bed, program: Path | str, *args: str, **options: Any) -> PluginProcess:
    profile = {"exec": {"path": str(program), "args": list(args), **options}}
    config = {
        "profiles": {"wake": profile},
        "selectors": [{"profile": "wake", "matchLabels": LABELS, "containers": ["server"]}],
    }
    return bed.plugin(config, arguments=[f"--launcher={compiled(LAUNCHER)}"])


def program(bed: Bed, name: str = "prefault") -> Path:
    """A copy of its own: it is mounted, and a test takes it away."""
    path = bed.directory / name
    path.write_bytes(compiled(PREFAULT).read_bytes())
    path.chmod(0o755)
    return path


def ended(plugin: PluginProcess, container_id: str) -> str:
    return str(until("the program's end", lambda: (plugin.entry(container_id) or {}).get("program"), 20))


def said(plugin: PluginProcess) -> str:
    return "\n".join(line for line in plugin.log.read_text().splitlines() if "warm-up program" in line)


def test_prefaults_a_region_before_the_entrypoint(bed: Bed) -> None:
    cpu = min(os.sched_getaffinity(0))
    plugin = plugin_with(bed, program(bed), REGION, "8", cpus=str(cpu))
    container = bed.container(bed.pod(labels=LABELS), *SAYS)
    assert bed.cri.wait_line(container, "resident") == f"resident {REGION} 2048 2048"
    assert ended(plugin, container.id).startswith("exit=0 after ")
    log = said(plugin)
    assert "prefaulted 8 MiB as uid 0" in log and f"Cpus_allowed_list:?{cpu}" in log
    assert plugin.metrics()['nri_warmup_programs_total{result="ok"}'] == 1
    # Bound for its time only: the entrypoint is not.
    status = Path(f"/proc/{bed.cri.pid(container)}/status").read_text()
    allowed = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))
    assert allowed != str(cpu) or os.cpu_count() == 1


def test_as_the_containers_own_user(bed: Bed) -> None:
    image = "localhost/as-user:1"
    bed.runtime.add_image(image, {"probe": probe_binary()}, directories=["sync"], config={"User": "1234:1234"})
    plugin = plugin_with(bed, program(bed), REGION, "1")
    container = bed.create(bed.pod(labels=LABELS), "/probe", *SAYS, image=image)
    bed.cri.start(container)
    assert bed.cri.wait_line(container, "resident") == f"resident {REGION} 256 256"
    ended(plugin, container.id)
    log = said(plugin)
    assert "as uid 1234" in log and "CapEff:?0000000000000000" in log


def test_directory_that_comes_along_is_readonly(faulty: Bed) -> None:
    directory = faulty.directory / "warm"
    (directory / "bin").mkdir(parents=True)
    path = program(faulty, "warm/bin/prefault")
    plugin = plugin_with(faulty, path, "/.nri-warmup/program/written", "1", directory=str(directory))
    container = faulty.container(faulty.pod(labels=LABELS), "say", "started", "sleep", "1000")
    faulty.cri.wait_line(container, "say started")
    assert ended(plugin, container.id).startswith("exit=1 after ")
    assert "Read-only file system" in said(plugin)
    assert sorted(p.name for p in directory.rglob("*")) == ["bin", "prefault"]


def test_readonly_root(faulty: Bed) -> None:
    plugin = plugin_with(faulty, program(faulty), REGION, "1")
    container = faulty.container(faulty.pod(labels=LABELS), *SAYS, readonly_root=True)
    assert faulty.cri.wait_line(container, "resident") == f"resident {REGION} 256 256"
    assert ended(plugin, container.id).startswith("exit=0")


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("int main(void) { return 3; }", "exit=3"),
        ("int main(void) { for (;;); }", "timeout"),
        ("int main(void) { return *(volatile int *)8; }", "signal=11"),
    ],
    ids=["fails", "hangs", "crashes"],
)
def test_program_that_ends_badly_fails_no_container(faulty: Bed, script: str, status: str) -> None:
    source = faulty.directory / "bad.c"
    source.write_text(script)
    path = faulty.directory / "bad"
    subprocess.run(["gcc", "-O1", "-static", "-o", path, source], check=True)
    plugin = plugin_with(faulty, path, timeout="500ms")
    container = faulty.container(faulty.pod(labels=LABELS), "say", "started", "sleep", "1000")
    faulty.cri.wait_line(container, "say started")
    assert ended(plugin, container.id).startswith(status)


def test_program_with_a_loader_that_the_image_lacks(faulty: Bed) -> None:
    plugin = plugin_with(faulty, "/bin/true")
    container = faulty.container(faulty.pod(labels=LABELS), "say", "started", "sleep", "1000")
    faulty.cri.wait_line(container, "say started")
    assert ended(plugin, container.id).startswith("exit=127")
    assert "No such file or directory" in said(plugin)


def test_program_that_is_gone_is_left_out(faulty: Bed) -> None:
    path = program(faulty)
    plugin = plugin_with(faulty, path, REGION, "1")
    path.unlink()
    container = faulty.container(faulty.pod(labels=LABELS), "say", "started", "sleep", "1000")
    faulty.cri.wait_line(container, "say started")
    entry = plugin.entry(container.id)
    codes = {reason["code"] for reason in entry["reasons"]} if entry else {"exec-unusable"}
    assert "exec-unusable" in codes
    assert "/.nri-warmup" not in str(faulty.cri.spec(container)["mounts"])


def test_plugin_that_is_gone_when_it_runs(faulty: Bed) -> None:
    plugin = plugin_with(faulty, program(faulty), REGION, str(4))
    container = faulty.create(faulty.pod(labels=LABELS), *SAYS)
    plugin.kill()
    faulty.cri.start(container)
    assert faulty.cri.wait_line(container, "resident") == f"resident {REGION} {4 * MIB // 4096} {4 * MIB // 4096}"
