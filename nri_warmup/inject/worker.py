"""The worker: one forked child a job. Gives up what it has, goes to where the target is, warms, and exits.

The order matters and each step has a test that fails without it. Everything read in here is data of an untrusted
tenant:

 1. nothing inherited but what the job needs; not dumpable, so that no process of the container can take a descriptor by
    pidfd_getfd or look into it by ptrace or /proc; first in line for the OOM killer;
 2. what only the host's view has is opened: /proc/self/fd, the page owner files, /dev/null; 3. the target's cgroups
 are joined, so that everything after this is charged there; 4. mount (and user) namespace entered, never the pid
 namespace; chroot only where the rootfs is not pivoted yet; 5. capabilities dropped to reading; parent-death signal
 set after the last change of ids, and the parent looked at again.

The zygote has emptied sys.path, sys.meta_path and sys.path_hooks long before: no import, codec or locale of the image
can run.
"""

from __future__ import annotations

import errno
import os
import resource

from nri_warmup.errors import KernelError
from nri_warmup.inject.engine import Engine
from nri_warmup.inject.files import MAX_SECONDS, Bounds, Finder
from nri_warmup.inject.meter import Meter
from nri_warmup.inject.wire import Report, Task
from nri_warmup.inject.work import Stop
from nri_warmup.kernel import syscalls
from nri_warmup.kernel.pagemap import PageMap

KEEP_CAPABILITIES = (
    # The server may run as any user of the image and read files that root without capabilities could not.
    syscalls.CAP_DAC_READ_SEARCH,
    # mincore answers truthfully only to a file's owner or one who may act as it; it also allows O_NOATIME.
    syscalls.CAP_FOWNER,
)


class Abandoned(Exception):
    """The job cannot be done as ordered. ``state`` is a value of model.outcome.OutcomeState."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason


class Opened:
    """What was opened while the host's view was there."""

    __slots__ = ("lease", "null", "pages", "self_fd")

    def __init__(self, lease: int | None) -> None:
        flags = os.O_CLOEXEC
        self.self_fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | flags)
        self.null = os.open("/dev/null", os.O_WRONLY | flags)
        # A description of our own: byte-range locks of the kind used belong to it, not to the process.
        self.lease = None if lease is None else os.open(str(lease), os.O_RDWR | flags, dir_fd=self.self_fd)
        self.pages: PageMap | None = None
        try:
            self.pages = PageMap()
        except KernelError:
            pass  # not root, or a kernel without them: nothing is said about owners

    def meter(self, owner: int | None) -> Meter | None:
        return None if self.pages is None else Meter(self.pages, owner)


def run(task: Task, report_fd: int, pidfd: int | None, lease_fd: int | None, zygote_pid: int) -> None:
    """The whole life of a worker. Returns when it may exit; what came of it has been reported."""
    report = Report(report_fd)
    charged = False
    try:
        keep_only({report_fd, pidfd, lease_fd})
        harden(zygote_pid)
        opened = Opened(lease_fd)
        charged = join(task, report)
        report.send("joined", charged)
        place(task)
        enter(task, pidfd)
        drop(task, zygote_pid)
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        report.send("progress", 0, 0, 0, 0, "")  # inside: whoever held the container for that may let it pivot now
    except Abandoned as exc:
        report.send("end", exc.state, exc.reason, 0, 0, 0, None, None, 0)
        return
    except (OSError, KernelError) as exc:
        report.send("end", "failed", _describe(exc), 0, 0, 0, None, None, 0)
        return
    # Half of a short deadline: what has been found by then can still be warmed.
    bounds = Bounds(task.max_files, seconds=min(MAX_SECONDS, task.deadline_s / 2))
    finder = Finder(root, opened.self_fd, bounds)
    meter = opened.meter(task.owner if charged else None)
    engine = Engine(task, finder, report, meter, opened.null, opened.lease)
    try:
        state, reason = engine.run()
    except Stop as stop:
        state, reason = stop.state, stop.reason
    except (OSError, KernelError) as exc:
        state, reason = "failed", _describe(exc)
    owned, large = (None, None) if meter is None else meter.totals(engine.read)
    report.send("touched", engine.toucher.touched_bytes, round(engine.toucher.seconds * 1e6))
    report.send("end", state, reason, engine.wanted, engine.resident, engine.read, owned, large, engine.files)


def keep_only(wanted: set[int | None]) -> None:
    """Close every descriptor but 0, 1, 2 (all /dev/null) and these."""
    first = 3
    for fd in sorted(fd for fd in wanted if fd is not None and fd > 2):
        if fd > first:
            syscalls.close_range(first, fd - 1)
        first = fd + 1
    syscalls.close_range(first, (1 << 32) - 1)


def harden(zygote_pid: int) -> None:
    die_with_parent(zygote_pid)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    _volunteer_for_the_oom_killer()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1024 if hard == resource.RLIM_INFINITY else min(1024, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _volunteer_for_the_oom_killer() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        return  # an ordinary user's process that is not dumpable may not; it warms in nobody's cgroup but its own
    try:
        os.write(fd, b"1000")
    finally:
        os.close(fd)


def die_with_parent(parent: int) -> None:
    """Set the parent-death signal, then look: a parent that died before would never send it."""
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, syscalls.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def join(task: Task, report: Report) -> bool:
    """Move into the target's cgroups; True when page cache is charged there now. Raises Abandoned when it would not
    be."""
    charged = False
    for path, is_memory in task.cgroups:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, b"0")
            finally:
                os.close(fd)
        except OSError as exc:
            if exc.errno in (errno.ENOENT, errno.ENODEV, errno.ESRCH):
                raise Abandoned("container-gone", f"its cgroup is gone: {path}") from None
            if is_memory:
                hint = ": it has cgroups of its own below it" if exc.errno == errno.EBUSY else ""
                raise Abandoned("failed", f"cannot join the memory cgroup: {_describe(exc)}{hint}") from None
            report.send("note", f"not in cgroup {path}: {_describe(exc)}")
        else:
            charged = charged or is_memory
    return charged


def place(task: Task) -> None:
    """CPU and memory placement: page cache goes where the policy of the task that reads it in says."""
    if task.cpus:
        os.sched_setaffinity(0, task.cpus)
    if task.nodes:
        syscalls.set_mempolicy(syscalls.MPOL_BIND, task.nodes)


def enter(task: Task, pidfd: int | None) -> None:
    before = os.stat("/")
    if task.namespaces:
        if pidfd is None:
            raise Abandoned("failed", "no process to enter the namespaces of")
        try:
            syscalls.setns(pidfd, task.namespaces)
        except KernelError as exc:
            if exc.errno == errno.ESRCH:
                raise Abandoned("container-gone", "ended before it was entered") from None
            raise
    if pidfd is not None:
        os.close(pidfd)
    if task.chroot:
        change_root(task.chroot, before)
    os.chdir("/")


def change_root(rootfs: str, before: os.stat_result) -> None:
    """Into a rootfs that is not pivoted yet. A container that was quicker than us has pivoted: then we are in it,
    unless what we see is still the root from ``before``."""
    try:
        os.chroot(rootfs)
    except (FileNotFoundError, NotADirectoryError):
        now = os.stat("/")
        if (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino):
            raise Abandoned("failed", "the container's rootfs is not where it was") from None


def drop(task: Task, zygote_pid: int) -> None:
    privileged = os.geteuid() == 0 or bool(task.namespaces & syscalls.CLONE_NEWUSER)
    keep: tuple[int, ...] = () if task.uid is not None or not privileged else KEEP_CAPABILITIES
    if privileged:
        syscalls.drop_bounding_set(keep)
    if task.uid is not None and task.gid is not None:
        _become(task.uid, task.gid)
    elif task.namespaces & syscalls.CLONE_NEWUSER:
        try:
            _become(0, 0)
        except OSError as exc:
            if exc.errno != errno.EINVAL:  # a user namespace that has no root
                raise
    if privileged:
        syscalls.capset(keep)
    # A change of ids or of user namespace makes a process dumpable by fs.suid_dumpable, and clears the death signal.
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    die_with_parent(zygote_pid)


def _become(uid: int, gid: int) -> None:
    try:
        os.setgroups([])
    except PermissionError:  # /proc/PID/setgroups is "deny" in some user namespaces
        pass
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _describe(exc: OSError | KernelError) -> str:
    if isinstance(exc, KernelError):
        return str(exc)
    name = errno.errorcode.get(exc.errno or 0, str(exc.errno))
    return f"{exc.filename}: {name}" if exc.filename is not None else name
