"""The worker as a container sees it: where it is, what it holds, what it may do. One test a rule of
``inject/worker.py``."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.inject.job import WarmJob
from nri_warmup.kernel import syscalls
from nri_warmup.model.outcome import OutcomeState
from tests.kernel.containers import MIB, Container, MemoryCgroup, container, make_file, resident, status_of, wait_for
from tests.kernel.jobs import Held, warm, while_held

KEPT = (1 << syscalls.CAP_DAC_READ_SEARCH) | (1 << syscalls.CAP_FOWNER)


@pytest.fixture
def rootfs(disk: Path) -> Path:
    root = disk / "rootfs"
    (root / "models").mkdir(parents=True)
    (root / "proc").mkdir()
    make_file(root / "models" / "model.bin", 4 * MIB)
    return root


@pytest.fixture
def box(rootfs: Path) -> Iterator[Container]:
    with container(rootfs, binds=[(Path("/proc"), "/proc")]) as running:
        yield running


def job(target: Container, **fields: object) -> WarmJob:
    values: dict[str, object] = {"id": "test", "pid": target.pid, "patterns": ("/models/**",), "deadline_s": 30.0}
    return WarmJob(**(values | fields))  # type: ignore[arg-type]


def test_enters_the_mount_namespace_and_no_other(disk: Path, box: Container) -> None:
    seen: dict[str, tuple[str, str]] = {}

    def look(held: Held) -> None:
        for name in ("mnt", "user", "pid", "net", "ipc", "uts"):
            worker = os.readlink(f"/proc/{held.worker_pid}/ns/{name}")
            seen[name] = (worker, os.readlink(f"/proc/{box.pid}/ns/{name}"))
        assert os.stat(f"/proc/{held.worker_pid}/root").st_ino == box.root.stat().st_ino

    outcome = while_held(disk, job(box), look)
    assert outcome.state is OutcomeState.DONE, outcome
    assert seen["mnt"][0] == seen["mnt"][1] != os.readlink("/proc/self/ns/mnt")
    assert all(seen[name][0] == os.readlink(f"/proc/self/ns/{name}") for name in ("user", "pid", "net", "ipc", "uts"))


def test_enters_a_user_namespace_as_its_root(disk: Path, rootfs: Path) -> None:
    give_to_the_user_namespace(rootfs)
    with container(rootfs, user_namespace=True) as box:

        def look(held: Held) -> None:
            status = status_of(held.worker_pid)
            assert status["Uid"].split() == ["100000"] * 4
            assert status["Gid"].split() == ["100000"] * 4
            assert int(status["CapEff"], 16) == KEPT
            assert os.readlink(f"/proc/{held.worker_pid}/ns/user") == os.readlink(f"/proc/{box.pid}/ns/user")

        outcome = while_held(disk, job(box), look)
    assert outcome.state is OutcomeState.DONE, outcome
    assert outcome.resident_bytes == 4 * MIB


def test_joins_every_cgroup_of_the_target(disk: Path, rootfs: Path, memory: MemoryCgroup) -> None:
    with container(rootfs, cgroups=[memory.path]) as box:

        def look(held: Held) -> None:
            assert Path(f"/proc/{held.worker_pid}/cgroup").read_text() == Path(f"/proc/{box.pid}/cgroup").read_text()

        outcome = while_held(disk, job(box), look)
    assert outcome.charged
    assert outcome.owned_bytes == outcome.read_bytes == 4 * MIB


def test_chroots_where_the_root_is_not_pivoted_yet(rootfs: Path) -> None:
    with container(rootfs, pivot=False) as box:
        outcome = warm(job(box, chroot=str(rootfs)))
    assert outcome.state is OutcomeState.DONE, outcome
    assert outcome.files[0].path == "/models/model.bin"
    assert resident(rootfs / "models" / "model.bin") == 4 * MIB


def test_capabilities_are_dropped_to_reading(disk: Path, box: Container) -> None:
    def look(held: Held) -> None:
        status = status_of(held.worker_pid)
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapBnd"], 16) == KEPT
        assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert status["NoNewPrivs"] == "1"

    while_held(disk, job(box), look)


def test_is_first_in_line_for_the_oom_killer(disk: Path, box: Container) -> None:
    def look(held: Held) -> None:
        assert Path(f"/proc/{held.worker_pid}/oom_score_adj").read_text().strip() == "1000"

    while_held(disk, job(box), look)


def test_holds_nothing_but_what_the_job_needs(disk: Path, box: Container) -> None:
    """No socket to the zygote, no task file, no pidfd, nothing that the daemon happened to have open."""
    leak = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leak, True)

    def look(held: Held) -> None:
        fds = Path(f"/proc/{held.worker_pid}/fd")
        links = sorted(os.readlink(entry) for entry in fds.iterdir())
        pipes = [link for link in links if link.startswith("pipe:")]
        assert len(pipes) == 1, links
        expected = {
            "/dev/null",
            f"/proc/{held.worker_pid}/fd",
            f"/proc/{held.worker_pid}/pagemap",
            "/proc/kpagecgroup",
            "/proc/kpageflags",
            "/",
            "/models/model.bin",
            str(held.lease),
        }
        assert {link for link in links if not link.startswith("pipe:")} <= expected, links

    try:
        while_held(disk, job(box), look)
    finally:
        os.close(leak)


@pytest.mark.parametrize("user_namespace", [False, True])
def test_a_container_process_cannot_reach_into_it(disk: Path, rootfs: Path, user_namespace: bool) -> None:
    """The container shares the host's pid namespace here, the worst case: it can name the worker. With the
    capabilities that runtimes give by default, and as the almighty root of a user namespace of its own, which outranks
    the worker there."""
    give_to_the_user_namespace(rootfs)
    answers: dict[str, str] = {}
    binds = [(Path("/proc"), "/proc")]
    with container(rootfs, binds=binds, user_namespace=user_namespace, privileged=user_namespace) as box:

        def look(held: Held) -> None:
            pid = held.worker_pid
            answers["getfd"] = box.ask("getfd", pid)
            answers["ptrace"] = box.ask("ptrace", pid)
            for name in ("mem", "environ", "maps", "auxv"):
                answers[name] = box.ask("open", f"/proc/{pid}/{name}")
            answers["root"] = box.ask("list", f"/proc/{pid}/root/")
            answers["cwd"] = box.ask("link", f"/proc/{pid}/cwd")
            answers["fd"] = box.ask("link", f"/proc/{pid}/fd/0")

        while_held(disk, job(box), look)
    assert set(answers.values()) <= {"EPERM", "EACCES"}, answers


@pytest.mark.parametrize("user_namespace", [False, True])
def test_the_attack_works_on_a_process_without_the_rule(rootfs: Path, user_namespace: bool) -> None:
    """Otherwise the test above would prove nothing: the same container does take a descriptor of another process in
    it."""
    give_to_the_user_namespace(rootfs)
    with container(rootfs, user_namespace=user_namespace, privileged=user_namespace) as box:
        victim = box.ask("child")
        assert box.ask("getfd", victim) == "ok"


def give_to_the_user_namespace(rootfs: Path) -> None:
    for path in (rootfs, rootfs / "models", rootfs / "models" / "model.bin"):
        os.chown(path, 100000, 100000)


@pytest.mark.parametrize("user_namespace", [False, True])
def test_dies_with_its_zygote(disk: Path, rootfs: Path, user_namespace: bool) -> None:
    """The parent-death signal must be set after the last change of ids, which clears it."""
    give_to_the_user_namespace(rootfs)
    with container(rootfs, user_namespace=user_namespace) as box:

        async def look(held: Held) -> None:
            worker = held.worker_pid
            # Nobody else is to end it: not our side, and not it itself by finding its report pipe broken.
            for running in held.injector._running.values():
                running.close()
            os.kill(worker, signal.SIGSTOP)
            assert held.injector.zygote_pid is not None
            os.kill(held.injector.zygote_pid, signal.SIGKILL)
            await asyncio.to_thread(wait_for, lambda: not alive(worker), "the worker to die")

        outcome = while_held(disk, job(box), look)
    assert outcome.state is OutcomeState.FAILED
    assert "zygote was killed" in outcome.reason


def alive(pid: int) -> bool:
    try:
        return status_of(pid)["State"][0] not in "ZX"
    except FileNotFoundError:
        return False
