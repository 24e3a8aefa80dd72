"""The zygote process: small, single-threaded, with the worker's modules imported and nothing else; forks one worker a
job.

Started by ``zygote.Injector`` as ``python -I -S -X utf8 -c …``. Talks to it over one SOCK_SEQPACKET socket:

    in:   run NUMBER            with descriptors: task (memfd), report (pipe); then, as flags say, target pidfd, lease
    file out:  ready
          forked NUMBER PID     with a pidfd of the worker
          refused NUMBER ERRNO  no worker could be forked
          exited NUMBER STATUS  as waitpid(2) gives it

It ends when the socket does, and its workers with it (parent-death signal).
"""

from __future__ import annotations

import _socket
import array
import gc
import os
import select
import sys

from nri_warmup.errors import KernelError
from nri_warmup.inject import worker
from nri_warmup.inject.wire import Report, Task
from nri_warmup.kernel import syscalls

MAX_FDS = 4
_INTS = array.array("i", [0]).itemsize


def main(fd: int, daemon_pid: int) -> None:
    """Never returns."""
    worker.die_with_parent(daemon_pid)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    sock = _socket.socket(fileno=fd)
    preload()
    close_the_doors()
    gc.collect()
    gc.disable()
    gc.freeze()  # collections would touch every page that is shared with the workers
    os.dup2(0, 2)
    sock.send(b"ready")
    try:
        Zygote(sock).serve()
    finally:
        os._exit(0)


def preload() -> None:
    """Use once what would otherwise be imported, looked up or loaded late."""
    "\udcff".encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    "x".encode("ascii", "backslashreplace")
    with os.scandir("/proc/self") as listing:
        next(listing, None)
    try:
        raise KernelError("preload", 2)
    except KernelError as exc:
        str(exc)


def close_the_doors() -> None:
    """No import can find anything any more: whatever a worker meets, no file of the image is ever run."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    # The default hook would look for source lines in files named by the traceback.
    sys.excepthook = _quiet


def _quiet(*_: object) -> None:
    os._exit(70)


class Zygote:
    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN)
        self._workers: dict[int, tuple[int, int]] = {}
        """pidfd of a worker -> (number of its job, pid)."""

    def serve(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._workers:
                    self._reap(fd)
                elif not self._receive():
                    return

    def _receive(self) -> bool:
        data, ancillary, _, _ = self._sock.recvmsg(256, _socket.CMSG_SPACE(MAX_FDS * _INTS), _socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // _INTS * _INTS])
        _, number, flags = data.split()
        try:
            self._fork(int(number), int(flags), fds.tolist())
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, number: int, flags: int, fds: list[int]) -> None:
        rest = fds[2:]
        pidfd = rest.pop(0) if flags & 1 else None
        lease = rest.pop(0) if flags & 2 else None
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as exc:
            self._sock.send(b"refused %d %d" % (number, exc.errno or 0))
            return
        if pid == 0:
            _worker(fds[0], fds[1], pidfd, lease, zygote)
        watch = syscalls.pidfd_open(pid)
        self._workers[watch] = (number, pid)
        self._poll.register(watch, select.POLLIN)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", [watch]))]
        self._sock.sendmsg([b"forked %d %d" % (number, pid)], rights)

    def _reap(self, watch: int) -> None:
        number, pid = self._workers.pop(watch)
        _, status = os.waitpid(pid, 0)
        self._poll.unregister(watch)
        os.close(watch)
        self._sock.send(b"exited %d %d" % (number, status))


def _worker(task_fd: int, report_fd: int, pidfd: int | None, lease: int | None, zygote: int) -> None:
    """In the child. Never returns."""
    status = 70
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 10)  # the server beside it comes first
        task = Task.load(os.pread(task_fd, os.fstat(task_fd).st_size, 0))
        worker.run(task, report_fd, pidfd, lease, zygote)
        status = 0
    except BrokenPipeError:
        status = 0  # nobody listens any more
    except BaseException as exc:
        Report(report_fd).send("end", "failed", f"{type(exc).__name__}: {exc}", 0, 0, 0, None, None, 0)
    finally:
        os._exit(status)
