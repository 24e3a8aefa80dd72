"""How jobs end when they do not end by themselves: target gone, cancelled, deadline, worker or zygote killed, a read
that hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel import process
from nri_warmup.model.outcome import OutcomeState, Progress
from tests.kernel.containers import MIB, Container, container, make_file, wait_for
from tests.kernel.fuse import HangingFuse
from tests.kernel.jobs import Held, warm, while_held


@pytest.fixture
def box(disk: Path) -> Iterator[Container]:
    root = disk / "rootfs"
    root.mkdir()
    make_file(root / "model.bin", 4 * MIB)
    with container(root) as running:
        yield running


def job(target: Container, **fields: object) -> WarmJob:
    values: dict[str, object] = {"id": "test", "pid": target.pid, "patterns": ("/model.bin",), "deadline_s": 30.0}
    return WarmJob(**(values | fields))  # type: ignore[arg-type]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_worker_is_gone_within_a_second_of_its_target(disk: Path, box: Container) -> None:
    async def kill_and_wait(held: Held) -> None:
        worker = held.worker_pid
        box.process.kill()
        await asyncio.to_thread(wait_for, lambda: gone(worker), "the worker to go", 1.0)

    outcome = while_held(disk, job(box), kill_and_wait)
    assert outcome.state is OutcomeState.CONTAINER_GONE
    assert "during the warm-up" in outcome.reason


def test_target_that_ended_before(box: Container) -> None:
    pidfd = process.pidfd_open(box.pid)
    try:
        box.process.kill()
        box.process.wait()

        async def main() -> None:
            async with Injector() as injector:
                outcome = await injector.run(job(box), pidfd)
                assert outcome.state is OutcomeState.CONTAINER_GONE
                outcome = await injector.run(job(box))
                assert outcome.state is OutcomeState.CONTAINER_GONE

        asyncio.run(main())
    finally:
        os.close(pidfd)


def test_cancel(disk: Path, box: Container) -> None:
    async def cancel(held: Held) -> None:
        worker = held.worker_pid
        await held.injector.cancel("somebody else's")
        assert not gone(worker)
        await held.injector.cancel("test")
        assert gone(worker)

    assert while_held(disk, job(box), cancel).state is OutcomeState.CANCELLED


def test_a_caller_that_is_cancelled_leaves_no_worker(disk: Path, box: Container) -> None:
    async def main() -> None:
        lease = disk / "lease"
        lease.touch()
        async with Injector(lease_path=str(lease), lease_wait_s=60) as injector:
            held = Held(injector, lease)
            held.hold()
            inside = asyncio.Event()
            running = asyncio.create_task(injector.run(job(box), None, lambda _: inside.set()))
            await asyncio.wait_for(inside.wait(), 10)
            worker = held.worker_pid
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await asyncio.to_thread(wait_for, lambda: gone(worker), "the worker to go", 1.0)
            held.release()
            assert (await injector.run(job(box))).state is OutcomeState.DONE
            assert injector.stuck == 0

    asyncio.run(main())


def test_deadline_is_kept(disk: Path, box: Container) -> None:
    async def until_gone(held: Held) -> None:
        worker = held.worker_pid
        await asyncio.to_thread(wait_for, lambda: gone(worker), "the worker to stop by itself")

    outcome = while_held(disk, job(box, deadline_s=1.0), until_gone)
    assert outcome.state is OutcomeState.DEADLINE
    assert outcome.seconds < 5


def test_killed_worker_is_a_failure_with_a_reason(disk: Path, box: Container) -> None:
    outcome = while_held(disk, job(box), lambda held: os.kill(held.worker_pid, signal.SIGKILL))
    assert outcome.state is OutcomeState.FAILED
    assert "SIGKILL" in outcome.reason


def test_stopped_worker_is_ended_at_the_deadline(disk: Path, box: Container) -> None:
    """The deadline is the daemon's: a worker that does nothing at all cannot pass it."""

    async def stop(held: Held) -> None:
        worker = held.worker_pid
        os.kill(worker, signal.SIGSTOP)
        await asyncio.to_thread(wait_for, lambda: gone(worker), "the worker to be killed")

    outcome = while_held(disk, job(box, deadline_s=1.0), stop)
    assert outcome.state is OutcomeState.DEADLINE


def test_killed_zygote_is_replaced(disk: Path, box: Container) -> None:
    async def main() -> None:
        async with Injector() as injector:
            first = injector.zygote_pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            outcomes = [await injector.run(job(box))]
            if outcomes[-1].state is OutcomeState.FAILED:  # the loop had not yet heard of its death
                outcomes.append(await injector.run(job(box)))
            assert outcomes[-1].state is OutcomeState.DONE, outcomes
            assert injector.zygote_pid != first
            assert injector.restarts == 1

    asyncio.run(main())


def test_zygote_killed_during_a_job(disk: Path, box: Container) -> None:
    def kill(held: Held) -> None:
        assert held.injector.zygote_pid is not None
        os.kill(held.injector.zygote_pid, signal.SIGKILL)

    outcome = while_held(disk, job(box), kill)
    assert outcome.state is OutcomeState.FAILED
    assert outcome.reason == "the zygote was killed"


def test_zygote_goes_with_its_daemon(disk: Path) -> None:
    """A daemon killed -9 leaves nothing behind, a worker in the middle of a job included."""
    lease, model = disk / "lease", make_file(disk / "model.bin", 4 * MIB)
    lease.touch()
    held = Held(Injector(), lease)
    held.hold()
    read, write = os.pipe()
    daemon = os.fork()
    if daemon == 0:

        async def main() -> None:
            async with Injector(lease_path=str(lease), lease_wait_s=60) as injector:
                zygote = injector.zygote_pid

                def tell(_: Progress) -> None:
                    children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text()
                    os.write(write, f"{zygote} {children}\n".encode())

                await injector.run(WarmJob(id="x", patterns=(str(model),), deadline_s=60), None, tell)

        try:
            asyncio.run(main())
        finally:
            os._exit(1)
    try:
        pids = [int(pid) for pid in os.read(read, 100).split(b"\n")[0].split()]
        assert len(pids) == 2
    finally:
        os.kill(daemon, signal.SIGKILL)
        os.waitpid(daemon, 0)
        os.close(read)
        os.close(write)
    wait_for(lambda: all(ended(pid) for pid in pids), "zygote and worker to go")
    held.release()


def ended(pid: int) -> bool:
    """Gone, or a zombie that nobody but this machine's init can reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_volume_can_be_taken_down_within_a_second_of_its_container(disk: Path) -> None:
    """A worker in the middle of a job holds the mount namespace, and with it the volume: until it goes with its
    target."""
    root = disk / "rootfs"
    (root / "mnt").mkdir(parents=True)
    with HangingFuse(disk / "volume", hang=False) as fuse:
        with container(root, binds=[(fuse.mount_point, "/mnt")]) as box:

            async def stop(held: Held) -> None:
                assert os.path.exists(f"/proc/{held.worker_pid}/root/mnt/model.bin")
                box.process.kill()
                box.process.wait()
                fuse.unmount()
                assert fuse.is_mounted_somewhere, "nothing held it, so nothing is shown here"
                await asyncio.to_thread(wait_for, lambda: not fuse.is_mounted_somewhere, "the volume to be free", 1.0)

            outcome = while_held(disk, job(box, patterns=("/mnt/model.bin",)), stop)
        assert outcome.state is OutcomeState.CONTAINER_GONE


@pytest.mark.parametrize("end", ["deadline", "cancel"])
def test_a_read_that_hangs_costs_its_slot_and_not_the_daemon(disk: Path, end: str) -> None:
    """A FUSE request that its server has taken cannot be interrupted: the worker stays in D state until the connection
    goes."""
    with HangingFuse(disk / "mnt") as fuse:

        async def main() -> None:
            async with Injector() as injector:
                order = WarmJob(id="hang", patterns=(str(fuse.file),), deadline_s=1.0 if end == "deadline" else 60)
                running = asyncio.create_task(injector.run(order))
                assert await asyncio.to_thread(fuse.reading.wait, 10)
                begin = time.monotonic()
                if end == "cancel":
                    await injector.cancel("hang")
                outcome = await running
                assert time.monotonic() - begin < 4
                assert outcome.state is (OutcomeState.DEADLINE if end == "deadline" else OutcomeState.CANCELLED)
                assert "waits inside the kernel" in outcome.reason
                assert injector.stuck == 1
                model = make_file(disk / "other.bin", 3 * MIB)
                other = await injector.run(WarmJob(id="next", patterns=(str(model),)))
                assert other.state is OutcomeState.DONE
                fuse.abort()
                until = time.monotonic() + 5
                while injector.stuck:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.01)

        asyncio.run(main())


def test_workers_that_do_not_die_are_held_against_their_group(disk: Path) -> None:
    """Each pins a cgroup and a mount namespace, and a pod in a crash loop would add one an attempt."""
    model = make_file(disk / "other.bin", 3 * MIB)
    with HangingFuse(disk / "a") as a, HangingFuse(disk / "b") as b:

        async def hang(injector: Injector, fuse: HangingFuse) -> None:
            order = WarmJob(id=fuse.mount_point.name, group="tenant", patterns=(str(fuse.file),), deadline_s=60)
            running = asyncio.create_task(injector.run(order))
            assert await asyncio.to_thread(fuse.reading.wait, 10)
            await injector.cancel(order.id)
            assert (await running).stuck

        async def main() -> None:
            async with Injector() as injector:
                await hang(injector, a)
                one = await injector.run(WarmJob(id="c", group="tenant", patterns=(str(model),)))
                assert one.state is OutcomeState.DONE and not one.stuck
                await hang(injector, b)
                assert injector.stuck_jobs() == ("a", "b")
                refused = await injector.run(WarmJob(id="d", group="tenant", patterns=(str(model),)))
                assert refused.state is OutcomeState.FAILED
                assert refused.reason == "2 workers of tenant wait inside the kernel: a, b"
                for group in ("another", ""):
                    other = await injector.run(WarmJob(id="e", group=group, patterns=(str(model),)))
                    assert other.state is OutcomeState.DONE
                assert injector.zygote_pid is not None
                os.kill(injector.zygote_pid, signal.SIGKILL)
                while (await injector.run(WarmJob(id="f", patterns=(str(model),)))).state is not OutcomeState.DONE:
                    assert injector.restarts == 0, "only the job that found the zygote dead may fail"
                assert injector.stuck_jobs() == ("a", "b"), "they have outlived their zygote"
                a.abort()
                b.abort()
                until = time.monotonic() + 5
                while injector.stuck:
                    assert time.monotonic() < until
                    await asyncio.sleep(0.01)
                freed = await injector.run(WarmJob(id="g", group="tenant", patterns=(str(model),)))
                assert freed.state is OutcomeState.DONE

        asyncio.run(main())


def test_a_zygote_that_takes_no_orders_costs_a_job_its_time_and_no_more(disk: Path) -> None:
    model = make_file(disk / "model.bin", 3 * MIB)
    orders = [WarmJob(id=str(i), patterns=(str(model),), deadline_s=1.0) for i in range(30)]

    async def main() -> None:
        async with Injector() as injector:
            assert injector.zygote_pid is not None and injector._sock is not None
            injector._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # room for a few orders
            os.kill(injector.zygote_pid, signal.SIGSTOP)
            try:
                outcomes = await asyncio.wait_for(asyncio.gather(*map(injector.run, orders)), 20)
            finally:
                os.kill(injector.zygote_pid, signal.SIGCONT)
            assert {outcome.state for outcome in outcomes} == {OutcomeState.DEADLINE}
            assert max(outcome.seconds for outcome in outcomes) < 8
            assert any(outcome.reason == "the zygote took no order" for outcome in outcomes), "all found room"
            assert injector.stuck == 0
            after = await injector.run(WarmJob(id="after", patterns=(str(model),)))
            assert after.state is OutcomeState.DONE
            await asyncio.to_thread(wait_for, lambda: not children(injector), "workers of jobs that are over to go")

    asyncio.run(main())


def children(injector: Injector) -> str:
    zygote = injector.zygote_pid
    return Path(f"/proc/{zygote}/task/{zygote}/children").read_text().strip()


@pytest.mark.parametrize("limit", ["budget_bytes", "max_bytes"])
def test_a_second_pass_has_what_the_first_has_left(disk: Path, box: Container, limit: str) -> None:
    with HangingFuse(disk / "volume", hang=False, uid=1234, allow_other=False) as fuse:
        root = disk / "second"
        (root / "mnt").mkdir(parents=True)
        make_file(root / "own.bin", 8 * MIB)
        with container(root, binds=[(fuse.mount_point, "/mnt")], uid=1234) as second:
            outcome = warm(job(second, patterns=("/own.bin", "/mnt/model.bin"), **{limit: 14 * MIB}))
    assert outcome.state is OutcomeState.OVER_BUDGET, outcome
    assert 8 * MIB <= outcome.read_bytes <= 14 * MIB
    assert {file.path: file.resident_bytes for file in outcome.files}["/own.bin"] == 8 * MIB


def test_what_a_second_pass_drives_out_is_not_counted(disk: Path) -> None:
    root = disk / "rootfs"
    (root / "mnt").mkdir(parents=True)
    own = make_file(root / "own.bin", 8 * MIB)

    def drive_out() -> None:
        with own.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 4 * MIB, os.POSIX_FADV_DONTNEED)

    volume = HangingFuse(disk / "volume", hang=False, uid=1234, allow_other=False, on_read=drive_out)
    with volume as fuse, container(root, binds=[(fuse.mount_point, "/mnt")], uid=1234) as box:
        outcome = warm(job(box, patterns=("/own.bin", "/mnt/model.bin")))
    assert outcome.state is OutcomeState.PARTIAL and "driven out" in outcome.reason, outcome
    assert (outcome.wanted_bytes, outcome.resident_bytes) == (16 * MIB, 12 * MIB)
    assert {file.path: file.resident_bytes for file in outcome.files} == {
        "/own.bin": 4 * MIB,
        "/mnt/model.bin": 8 * MIB,
    }


def test_a_short_deadline_leaves_time_to_warm_what_was_found(disk: Path) -> None:
    """Names that take long to look up use up half of the time, not all of it."""
    with HangingFuse(disk / "mnt", hang=False, on_lookup=lambda: time.sleep(0.25)) as fuse:
        names = (str(fuse.file), *(str(fuse.mount_point / f"missing-{i}") for i in range(40)))
        outcome = warm(WarmJob(id="x", patterns=names, deadline_s=3.0))
    assert outcome.state is OutcomeState.PARTIAL, outcome
    assert "expansion stopped: more than 1.5 s" in outcome.reason
    assert outcome.files[-1].path == str(fuse.file) and outcome.files[-1].resident_bytes == 8 * MIB


def test_files_that_only_the_container_user_may_read(disk: Path) -> None:
    """FUSE without allow_other refuses even root; so does root-squashed NFS. The container's own user is asked to
    read."""
    root = disk / "rootfs"
    (root / "mnt").mkdir(parents=True)
    with HangingFuse(disk / "volume", hang=False, uid=1234, allow_other=False) as fuse:
        with pytest.raises(PermissionError):
            os.listdir(fuse.mount_point)
        with container(root, binds=[(fuse.mount_point, "/mnt")], uid=1234) as box:
            outcome = warm(job(box, patterns=("/mnt/model.bin",)))
        assert outcome.state is OutcomeState.DONE, outcome
        assert outcome.files[0].resident_bytes == 8 * MIB
    outcome = warm(WarmJob(id="x", patterns=("/nowhere/*",)))
    assert outcome.state is OutcomeState.PARTIAL
