"""The daemon's side of the injector: keeps one zygote process, has it fork a worker a job, watches, and says what came
of it.

Whatever happens there is an outcome: a worker or zygote killed, a target gone, a deadline, a cancel, a read that
hangs. The daemon waits on descriptors only and never on a worker: it is killed through its pidfd, and one that does
not die because it waits inside the kernel is counted in ``stuck`` until it does, and held against its group.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from nri_warmup.errors import ContainerGone, KernelError, RemoteProtocolError, WarmupError
from nri_warmup.inject import target
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.running import Running, merge
from nri_warmup.inject.wire import Task
from nri_warmup.kernel import process
from nri_warmup.kernel.root import Root
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress

START_S = 10.0
GRACE_S = 0.5
"""Past the deadline, for a worker that keeps it itself: its numbers are better than ours."""
KILL_S = 0.9
"""A killed worker that is still there after this is stuck in the kernel."""
MAX_STUCK = 2
"""Of one group: after that it gets no more workers until one of them has died."""
LEASE_WAIT_S = 2.0

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE = "import sys;sys.path.insert(0,sys.argv[1]);from nri_warmup.inject.zygote_main import main;main(%d,%d)"
_INTS = array.array("i", [0]).itemsize


class ZygoteDied(WarmupError):
    """The zygote is gone, and its workers with it."""


class Injector:
    """``async with Injector() as injector: outcome = await injector.run(job)``. One event loop, any number of jobs at
    once.

    ``lease_path`` names a file whose byte ranges are locked by workers, one range a file being warmed: two injectors
    with the same path leave a file to the job that has begun with it, unless that gets on too slowly for
    ``lease_wait_s``. Without a path, or where it cannot be opened, the lock is among this injector's own jobs only.
    """

    def __init__(
        self, *, root: Root | None = None, lease_path: str | None = None, lease_wait_s: float = LEASE_WAIT_S
    ) -> None:
        self._root = root or Root()
        self._lease_path = lease_path
        self._lease_wait_s = lease_wait_s
        self._lease: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._starting = asyncio.Lock()
        self._running: dict[int, Running] = {}
        self._left: dict[int, Running] = {}
        """Killed, not known to have died, and waited for no longer."""
        self._next = 0
        self.restarts = 0

    async def __aenter__(self) -> Injector:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def zygote_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def stuck(self) -> int:
        """Workers that were killed and still wait inside the kernel."""
        return sum(running.is_stuck() for running in self._left.values())

    def stuck_jobs(self) -> tuple[str, ...]:
        """Ids of their jobs, oldest first."""
        return tuple(running.job_id for running in self._left.values() if running.is_stuck())

    async def start(self) -> None:
        """Start the zygote, or one anew where the last one died. Raises ZygoteDied when it does not come up."""
        async with self._starting:
            if self._sock is not None:
                return
            if self._process is not None:
                self.restarts += 1
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
            self._spawn()
            assert self._ready is not None
            try:
                await asyncio.wait_for(asyncio.shield(self._ready), START_S)
            except TimeoutError:
                self._lost("did not come up")
                raise ZygoteDied(f"the zygote did not come up within {START_S:g} s") from None

    def _spawn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._lease is None:
            self._lease = _open_lease(self._lease_path)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        os.set_inheritable(theirs.fileno(), True)
        code = _CODE % (theirs.fileno(), os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, _PACKAGE_PARENT],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={"LC_ALL": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        except OSError as exc:
            ours.close()
            raise ZygoteDied(f"{sys.executable}: {exc.strerror}") from exc
        finally:
            theirs.close()
        self._sock = ours
        self._ready = loop.create_future()
        loop.add_reader(ours.fileno(), self._receive, ours)

    async def close(self) -> None:
        """End every job as cancelled, then the zygote."""
        for running in list(self._running.values()):
            running.stop(OutcomeState.CANCELLED, "the injector is closed")
        if self._running:
            await asyncio.wait([r.gone for r in self._running.values()], timeout=KILL_S)
        self._lost("the injector is closed")
        for running in list(self._left.values()):
            self._bury(running)
        if self._process is not None:
            try:
                await asyncio.to_thread(self._process.wait, 2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
            self._process = None
        if self._lease is not None:
            os.close(self._lease)
            self._lease = None

    async def cancel(self, job_id: str) -> None:
        """End a job; returns once its worker is gone, or known to be stuck. Unknown ids are nothing to do."""
        hit = [running for running in self._running.values() if running.job_id == job_id]
        for running in hit:
            running.stop(OutcomeState.CANCELLED, "cancelled")
        if hit:
            await asyncio.wait([running.gone for running in hit], timeout=KILL_S)

    # -- one job ------------------------------------------------------------------------------------------------------

    async def run(
        self, job: WarmJob, pidfd: int | None = None, on_progress: Callable[[Progress], None] | None = None
    ) -> Outcome:
        """Warm, and say what came of it; raises nothing but CancelledError. ``pidfd`` stays the caller's; without one
        it is opened here, which is only as good as the caller's trust that the pid is still the container's."""
        begin = time.monotonic()
        own_pidfd = None
        try:
            if pidfd is None and job.pid:
                pidfd = own_pidfd = process.pidfd_open(job.pid)
            self._refuse_the_stuck(job)
            task = target.prepare(self._root, job, pidfd)
            task.lease_wait_s = self._lease_wait_s
            outcome = await self._attempt(job, task, pidfd, on_progress)
            again = target.retry_as_owner(self._root, job, task, outcome)
            if again is not None:
                again.deadline_s = job.deadline_s - (time.monotonic() - begin)
                if again.deadline_s > 0:
                    second = await self._attempt(job, again, pidfd, on_progress)
                    again = target.measure_again(task, job.deadline_s - (time.monotonic() - begin))
                    checked = await self._measure(job, again, pidfd) if second.read_bytes else outcome
                    outcome = merge(outcome, second, checked)
        except ContainerGone as exc:
            outcome = Outcome(state=OutcomeState.CONTAINER_GONE, reason=str(exc), resident_bytes=None)
        except (WarmupError, OSError) as exc:
            gone = isinstance(exc, KernelError) and exc.errno == errno.ESRCH  # no such process
            state = OutcomeState.CONTAINER_GONE if gone else OutcomeState.FAILED
            outcome = Outcome(state=state, reason=str(exc), resident_bytes=None)
        finally:
            if own_pidfd is not None:
                os.close(own_pidfd)
        return replace(outcome, seconds=time.monotonic() - begin, budget_bytes=job.budget_bytes)

    def _refuse_the_stuck(self, job: WarmJob) -> None:
        """Each such worker pins a cgroup and a mount namespace, and the next one would most likely join them."""
        stuck = [r.job_id for r in self._left.values() if job.group and r.group == job.group and r.is_stuck()]
        if len(stuck) >= MAX_STUCK:
            raise WarmupError(f"{len(stuck)} workers of {job.group} wait inside the kernel: {', '.join(stuck[:4])}")

    async def _measure(self, job: WarmJob, task: Task, pidfd: int | None) -> Outcome | None:
        """What is resident at the end; None where the time is over, or it cannot be told."""
        if task.deadline_s <= 0:
            return None
        outcome = await self._attempt(job, task, pidfd, None)
        return outcome if outcome.state is OutcomeState.OBSERVED else None

    async def _attempt(
        self, job: WarmJob, task: Task, pidfd: int | None, on_progress: Callable[[Progress], None] | None
    ) -> Outcome:
        await self.start()
        loop = asyncio.get_running_loop()
        self._next += 1
        running = Running(job.id, job.group, self._next, loop)
        report, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(report_write, True)
        self._running[running.number] = running
        watched = None if pidfd is None else os.dup(pidfd)  # the caller may watch its own in the same loop
        try:
            until = loop.time() + task.deadline_s
            try:
                await self._send(running, task, report_write, pidfd)
            finally:
                os.close(report_write)
            loop.add_reader(report, self._read, running, report, on_progress)
            if watched is not None:
                loop.add_reader(watched, self._target_gone, running, watched)
            await self._until_gone(running, task.deadline_s, until - loop.time())
            self._drain(running, report)
            return running.outcome()
        finally:
            loop.remove_reader(report)
            os.close(report)
            if watched is not None:
                loop.remove_reader(watched)
                os.close(watched)
            self._forget(running)

    async def _until_gone(self, running: Running, deadline_s: float, left_s: float) -> None:
        ends = [running.gone, running.stopping]
        timeout = max(0.0, left_s) + GRACE_S
        done, _ = await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            running.stop(OutcomeState.DEADLINE, f"not done within {deadline_s:g} s")
        if not running.gone.done():
            # Killed. It is gone within a moment, or waits for something inside the kernel.
            await asyncio.wait([running.gone], timeout=KILL_S)

    def _forget(self, running: Running) -> None:
        """Nobody waits for it any more. It stays in the table until the zygote has no more to say of it."""
        running.abandoned = True
        running.gone.add_done_callback(lambda _: self._running.pop(running.number, None))
        self._leave(running)

    def _leave(self, running: Running) -> None:
        """A worker that is still there is watched until it has died, by its pidfd: the zygote may go before it does."""
        running.kill()
        if running.pidfd is not None and running.is_alive():
            self._left[running.number] = running
            asyncio.get_running_loop().add_reader(running.pidfd, self._bury, running)
        else:
            running.close()

    def _bury(self, running: Running) -> None:
        if running.pidfd is not None:
            asyncio.get_running_loop().remove_reader(running.pidfd)
        self._left.pop(running.number, None)
        running.close()

    async def _send(self, running: Running, task: Task, report_write: int, pidfd: int | None) -> None:
        memfd = os.memfd_create("nri-warmup-task", os.MFD_CLOEXEC)
        try:
            data = memoryview(task.dump())
            while data:
                data = data[os.write(memfd, data) :]
            fds = [memfd, report_write]
            flags = 0
            if pidfd is not None:
                fds.append(pidfd)
                flags |= 1
            if self._lease is not None:
                fds.append(self._lease)
                flags |= 2
            message = b"run %d %d" % (running.number, flags)
            until = time.monotonic() + task.deadline_s
            while True:
                if self._sock is None:
                    raise ZygoteDied("the zygote was killed")
                try:
                    socket.send_fds(self._sock, [message], fds)
                    return
                except BlockingIOError:  # it does not read: stopped, or far behind
                    if time.monotonic() > until:
                        running.stop(OutcomeState.DEADLINE, "the zygote took no order")
                    if running.stopped is not None:
                        running.end()
                        return
                    await asyncio.wait([running.stopping], timeout=0.02)
                except OSError as exc:
                    self._lost("the zygote was killed")
                    raise ZygoteDied("the zygote was killed") from exc
        except BaseException:
            running.end()  # it has never begun
            raise
        finally:
            os.close(memfd)

    def _read(self, running: Running, report: int, on_progress: Callable[[Progress], None] | None) -> None:
        try:
            data = os.read(report, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(report)
            return
        self._feed(running, data, on_progress)

    def _feed(self, running: Running, data: bytes, on_progress: Callable[[Progress], None] | None = None) -> None:
        try:
            if running.records.feed(data) and on_progress is not None:
                on_progress(running.records.progress)
        except RemoteProtocolError as exc:
            running.stop(OutcomeState.FAILED, f"the worker spoke nonsense: {exc}")

    def _drain(self, running: Running, report: int) -> None:
        """What the worker wrote before it went and the loop has not read yet."""
        while True:
            try:
                data = os.read(report, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self._feed(running, data)

    def _target_gone(self, running: Running, watched: int) -> None:
        asyncio.get_running_loop().remove_reader(watched)
        running.stop(OutcomeState.CONTAINER_GONE, "ended during the warm-up")

    # -- the zygote ---------------------------------------------------------------------------------------------------

    def _receive(self, sock: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(sock, 256, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            self._lost("the zygote was killed")
            return
        words = data.split()
        running = self._running.get(int(words[1])) if len(words) > 1 else None
        if words[0] == b"ready" and self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
        elif words[0] == b"forked" and running is not None and fds:
            running.pid = int(words[2])
            running.pidfd = fds.pop(0)
            if running.abandoned:
                self._leave(running)
            elif running.stopped is not None:
                running.kill()
        elif words[0] == b"exited" and running is not None:
            running.status = int(words[2])
            running.end()
        elif words[0] == b"refused" and running is not None:
            running.stop(OutcomeState.FAILED, f"no worker could be forked: {os.strerror(int(words[2]))}")
            running.end()
        for fd in fds:
            os.close(fd)

    def _lost(self, reason: str) -> None:
        """The zygote is gone, or is told to go: so are its workers (parent-death signal, and ours to be sure)."""
        if self._sock is None:
            return
        asyncio.get_running_loop().remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None
        for running in list(self._running.values()):
            running.stop(OutcomeState.FAILED, reason)
            running.end()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ZygoteDied("the zygote died while starting"))


def _open_lease(path: str | None) -> int:
    if path is not None:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            pass  # no such directory, or not ours: files are warmed all the same
    return os.memfd_create("nri-warmup-lease", os.MFD_CLOEXEC)
