"""The log of warm-up programs: who may write to it is told by the peer's cgroup, and what is written is bounded."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from nri_warmup.config import load_config
from nri_warmup.daemon.programs import ProgramHealth, ProgramLog
from nri_warmup.daemon.registry import Entry
from nri_warmup.kernel.root import Root
from nri_warmup.model.lifecycle import Container, Mount, Pod
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import Adjustment, WarmupPlan
from nri_warmup.observe.metrics import Registry as Metrics

ID = "c0ffee"
CONFIG = load_config({"profiles": [{"name": "a", "exec": {"path": "/bin/sh"}}]}, source="test")


def entry(*, planned: bool = True) -> Entry:
    mounts = (Mount(destination="/.nri-warmup/log"),) if planned else ()
    plan = WarmupPlan(profile="a", adjustment=Adjustment(mounts=mounts))
    return Entry(pod=Pod(id="p", name="web", namespace="default"), container=Container(id=ID), plan=plan)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A procfs in which this process is in the container's cgroup."""
    process = tmp_path / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubepods.slice/cri-containerd-{ID}.scope\n")
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "self" / "mountinfo").write_text("30 20 0:9 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
    return Root(tmp_path)


def write(root: Root, found: Entry | None, data: bytes) -> tuple[Metrics, bool]:
    """Send ``data`` as a launcher would. Gives the metrics, and whether the connection was kept until its end."""
    metrics = Metrics()

    async def main() -> bool:
        directory = f"{root.path}/exec"
        log = ProgramLog(directory, root, lambda container_id: found if container_id == ID else None, metrics)
        await log.start()
        assert os.stat(f"{directory}/log.sock").st_mode & 0o777 == 0o666
        reader, writer = await asyncio.open_unix_connection(f"{directory}/log.sock")
        kept = True
        try:
            writer.write(data)
            await writer.drain()
            writer.write_eof()
        except OSError:
            kept = False
        async with asyncio.timeout(10):
            try:
                assert await reader.read() == b""
            except ConnectionError:
                kept = False
        await log.close()
        assert not os.path.exists(f"{directory}/log.sock")
        return kept

    return metrics, asyncio.run(main())


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.fields["text"] for record in caplog.records if hasattr(record, "fields")]


def test_output_of_a_planned_container(root: Root, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nri_warmup")
    known = entry()
    metrics, _ = write(root, known, b"o one\x1b[31m\no two\ne exit=0 12\n")
    assert known.program == "exit=0 after 12 ms"
    assert metrics.value("nri_warmup_programs_total", result="ok") == 1
    assert texts(caplog) == ["one?[31m", "two", "ended: exit=0 after 12 ms"]


@pytest.mark.parametrize("found", [None, entry(planned=False)], ids=["unknown", "without-a-program"])
def test_others_are_not_listened_to(root: Root, found: Entry | None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nri_warmup")
    metrics, _ = write(root, found, b"o hello\ne exit=0 1\n")
    assert metrics.value("nri_warmup_programs_total", result="ok") is None
    assert texts(caplog) == []


def test_only_the_first_end_counts(root: Root) -> None:
    known = entry()
    for data in (b"e timeout 500\n", b"e exit=0 1\n"):
        metrics, _ = write(root, known, data)
    assert known.program == "timeout after 500 ms"
    assert metrics.value("nri_warmup_programs_total", result="ok") is None


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"e \n", b"e\n", b"x" * 1_000_000, b"o x\n" * 50_000, b"o \xff\xfe\n", b"o"]
)
def test_whatever_is_written_is_bounded(root: Root, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nri_warmup")
    write(root, entry(), data)
    assert len(texts(caplog)) <= 100
    assert all(len(text) <= 500 for text in texts(caplog))


def test_what_can_be_run_here(tmp_path: Path) -> None:
    launcher = tmp_path / "launcher"

    def reason() -> str:
        return ProgramHealth(str(launcher), str(tmp_path)).overlay(NodeState(), CONFIG, "").exec_reason

    assert "not installed" in reason()
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    assert "needs no libraries" in reason()
    launcher.write_bytes(Path("/bin/sh").read_bytes())
    assert "needs no libraries" in reason()


def test_veto_of_the_runtime_and_files_that_are_missing(tmp_path: Path) -> None:
    health = ProgramHealth(str(tmp_path / "launcher"), str(tmp_path))
    assert health.overlay(NodeState(), CONFIG, "hooks are rejected").exec_reason == "hooks are rejected"
    secret = tmp_path / "secret"
    secret.write_text("")
    secret.chmod(0o700)
    paths = [str(secret), str(tmp_path), "/nonexistent", "/bin/sh"]
    config = load_config(
        {"profiles": [{"name": f"p{i}", "exec": {"path": path}} for i, path in enumerate(paths)]}, source="test"
    )
    assert health.overlay(NodeState(), config, "").exec_missing == tuple(sorted(paths[:3]))
    without = load_config({"profiles": [{"name": "a"}]}, source="test")
    assert health.overlay(NodeState(), without, "") == NodeState()
