"""The daemon's side of the injector: keeps one zygote process, has it fork a worker a job, watches, and says what came
of it.

Whatever happens there is an outcome: a worker or zygote killed, a target gone, a deadline, a cancel, a read that
hangs. The daemon waits on descriptors only and never on a worker: it is killed through its pidfd, and one that does
not die because it waits inside the kernel is left to its zygote, counted in ``stuck`` until it does.
"""

from __future__ import annotations

import array
import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from nri_warmup.errors import ContainerGone, KernelError, RemoteProtocolError, WarmupError
from nri_warmup.inject import target
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.records import Records
from nri_warmup.inject.wire import Task
from nri_warmup.kernel import process
from nri_warmup.kernel.root import Root
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.warmset import FileState

START_S = 10.0
GRACE_S = 0.5
"""Past the deadline, for a worker that keeps it itself: its numbers are better than ours."""
KILL_S = 0.9
"""A killed worker that is still there after this is stuck in the kernel."""

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CODE = "import sys;sys.path.insert(0,sys.argv[1]);from nri_warmup.inject.zygote_main import main;main(%d,%d)"
_INTS = array.array("i", [0]).itemsize


class ZygoteDied(WarmupError):
    """The zygote is gone, and its workers with it."""


class _Running:
    """One worker of one job."""

    def __init__(self, job_id: str, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.job_id = job_id
        self.number = number
        self.records = Records()
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.status: int | None = None
        self.stopped: tuple[OutcomeState, str] | None = None
        """Why we ended it, where it was us."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the worker has exited, or the zygote has."""
        self.stopping: asyncio.Future[None] = loop.create_future()
        """Done when we have ended it."""

    def stop(self, state: OutcomeState, reason: str) -> None:
        if self.stopped is None:
            self.stopped = (state, reason)
            self.stopping.set_result(None)
        self.kill()

    def kill(self) -> None:
        if self.pidfd is not None:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Injector:
    """``async with Injector() as injector: outcome = await injector.run(job)``. One event loop, any number of jobs at
    once.

    ``lease_path`` names a file whose byte ranges are locked by workers, one range a file being warmed; two injectors
    with the same path never warm one file at the same time. Without it the lock is among this injector's own jobs
    only.
    """

    def __init__(self, *, root: Root | None = None, lease_path: str | None = None) -> None:
        self._root = root or Root()
        self._lease_path = lease_path
        self._lease: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._starting = asyncio.Lock()
        self._running: dict[int, _Running] = {}
        self._next = 0
        self.stuck = 0
        """Workers that were killed and still wait inside the kernel: each holds a slot."""
        self.restarts = 0

    async def __aenter__(self) -> Injector:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def zygote_pid(self) -> int | None:
        return None if self._process is None else self._process.pid

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
            task = target.prepare(self._root, job, pidfd)
            outcome = await self._attempt(job, task, pidfd, on_progress)
            again = self._again(job, task, outcome)
            if again is not None:
                again.deadline_s = job.deadline_s - (time.monotonic() - begin)
                if again.deadline_s > 0:
                    outcome = _merged(outcome, await self._attempt(job, again, pidfd, on_progress))
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

    def _again(self, job: WarmJob, task: Task, outcome: Outcome) -> Task | None:
        if outcome.state not in (OutcomeState.PARTIAL, OutcomeState.OVER_BUDGET):
            return None
        paths = tuple(file.path for file in outcome.files if file.state is FileState.UNREADABLE)
        return target.retry_as_owner(self._root, job, task, paths) if paths else None

    async def _attempt(
        self, job: WarmJob, task: Task, pidfd: int | None, on_progress: Callable[[Progress], None] | None
    ) -> Outcome:
        await self.start()
        loop = asyncio.get_running_loop()
        self._next += 1
        running = _Running(job.id, self._next, loop)
        report, report_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(report_write, True)
        self._running[running.number] = running
        watched = None if pidfd is None else os.dup(pidfd)  # the caller may watch its own in the same loop
        try:
            try:
                await self._send(running, task, report_write, pidfd)
            finally:
                os.close(report_write)
            loop.add_reader(report, self._read, running, report, on_progress)
            if watched is not None:
                loop.add_reader(watched, self._target_gone, running, watched)
            await self._until_gone(running, task.deadline_s)
            self._drain(running, report)
            return _outcome(running)
        finally:
            running.kill()
            loop.remove_reader(report)
            os.close(report)
            if watched is not None:
                loop.remove_reader(watched)
                os.close(watched)
            self._forget(running)

    async def _until_gone(self, running: _Running, deadline_s: float) -> None:
        first = asyncio.FIRST_COMPLETED
        done, _ = await asyncio.wait([running.gone, running.stopping], timeout=deadline_s + GRACE_S, return_when=first)
        if not done:
            running.stop(OutcomeState.DEADLINE, f"not done within {deadline_s:g} s")
        if not running.gone.done():
            # Killed. It is gone within a moment, or waits for something inside the kernel.
            await asyncio.wait([running.gone], timeout=KILL_S)

    def _forget(self, running: _Running) -> None:
        """Out of the table when it has exited; else it stays there, stuck, until the zygote says it has."""
        if running.gone.done():
            self._running.pop(running.number, None)
            running.close()
        else:
            self.stuck += 1
            running.gone.add_done_callback(lambda _: self._unstick(running))

    def _unstick(self, running: _Running) -> None:
        self.stuck -= 1
        self._running.pop(running.number, None)
        running.close()

    async def _send(self, running: _Running, task: Task, report_write: int, pidfd: int | None) -> None:
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
            while True:
                if self._sock is None:
                    raise ZygoteDied("the zygote was killed")
                try:
                    socket.send_fds(self._sock, [message], fds)
                    return
                except BlockingIOError:
                    await asyncio.sleep(0.005)
                except OSError as exc:
                    self._lost("the zygote was killed")
                    raise ZygoteDied("the zygote was killed") from exc
        finally:
            os.close(memfd)

    def _read(self, running: _Running, report: int, on_progress: Callable[[Progress], None] | None) -> None:
        try:
            data = os.read(report, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(report)
            return
        self._feed(running, data, on_progress)

    def _feed(self, running: _Running, data: bytes, on_progress: Callable[[Progress], None] | None = None) -> None:
        try:
            if running.records.feed(data) and on_progress is not None:
                on_progress(running.records.progress)
        except RemoteProtocolError as exc:
            running.stop(OutcomeState.FAILED, f"the worker spoke nonsense: {exc}")

    def _drain(self, running: _Running, report: int) -> None:
        """What the worker wrote before it went and the loop has not read yet."""
        while True:
            try:
                data = os.read(report, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self._feed(running, data)

    def _target_gone(self, running: _Running, watched: int) -> None:
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
            if running.stopped is not None:
                running.kill()
        elif words[0] == b"exited" and running is not None:
            running.status = int(words[2])
            if not running.gone.done():
                running.gone.set_result(None)
        elif words[0] == b"refused" and running is not None:
            running.stop(OutcomeState.FAILED, f"no worker could be forked: {os.strerror(int(words[2]))}")
            running.gone.set_result(None)
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
            if not running.gone.done():
                running.gone.set_result(None)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ZygoteDied("the zygote died while starting"))


def _open_lease(path: str | None) -> int:
    if path is None:
        return os.memfd_create("nri-warmup-lease", os.MFD_CLOEXEC)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _outcome(running: _Running) -> Outcome:
    """The worker's own words where it came to an end, else what is known of it."""
    records = running.records
    files = tuple(records.files)
    end = records.end
    if end is not None and (running.stopped is None or running.stopped[0] is not OutcomeState.FAILED):
        return Outcome(
            state=end.state,
            reason="; ".join(filter(None, (end.reason, *records.notes))),
            wanted_bytes=end.wanted_bytes,
            resident_bytes=end.resident_bytes,
            read_bytes=end.read_bytes,
            owned_bytes=end.owned_bytes,
            large_folio_bytes=end.large_folio_bytes,
            touched_bytes=records.touched_bytes,
            files_total=end.files,
            files=files,
            charged=records.charged,
        )
    state, reason = running.stopped or (OutcomeState.FAILED, _death(running.status))
    if not running.gone.done():
        reason += "; its worker waits inside the kernel and does not die"
    return Outcome(
        state=state,
        reason=reason,
        wanted_bytes=records.progress.wanted_bytes,
        resident_bytes=None,
        read_bytes=records.progress.read_bytes,
        files_total=len(files),
        files=files,
        charged=records.charged,
    )


def _death(status: int | None) -> str:
    if status is None:
        return "the worker vanished"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return "the worker was killed (SIGKILL: by the OOM killer, or by somebody)"
    return f"the worker died of signal {-code}" if code < 0 else f"the worker exited with {code}"


def _merged(first: Outcome, second: Outcome) -> Outcome:
    """A first pass, and a second one over the files that it could not read."""
    again = {file.path: file for file in second.files}
    files = tuple(again.get(file.path, file) for file in first.files)
    bad = [file for file in files if file.state not in (FileState.WARMED, FileState.EMPTY)]
    state, reason = first.state, first.reason
    if second.state is not OutcomeState.DONE:
        state, reason = second.state, second.reason
    elif not bad and first.state is OutcomeState.PARTIAL and first.files_total == len(files):
        state, reason = OutcomeState.DONE, ""
    resident = None
    if first.resident_bytes is not None and second.resident_bytes is not None:
        resident = first.resident_bytes + second.resident_bytes
    return replace(
        first,
        state=state,
        reason=reason,
        files=files,
        wanted_bytes=first.wanted_bytes + second.wanted_bytes,
        resident_bytes=resident,
        read_bytes=first.read_bytes + second.read_bytes,
        owned_bytes=_plus(first.owned_bytes, second.owned_bytes),
        large_folio_bytes=_plus(first.large_folio_bytes, second.large_folio_bytes),
        touched_bytes=first.touched_bytes + second.touched_bytes,
    )


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
