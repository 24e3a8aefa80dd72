"""From a job to a task: everything that only the host's view can tell of the target, read before a worker is forked."""

from __future__ import annotations

import errno

from nri_warmup.errors import ContainerGone, KernelError
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.wire import Task
from nri_warmup.kernel import cgroup, namespaces, process
from nri_warmup.kernel.root import Root
from nri_warmup.kernel.syscalls import PAGE_SIZE
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.model.profile import Residency
from nri_warmup.model.warmset import FileState

_PMD_SIZE = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
_MEMORY_FILES = ("memory.usage_in_bytes", "memory.current", "memory.stat")


def prepare(root: Root, job: WarmJob, pidfd: int | None) -> Task:
    """Raises ContainerGone, or KernelError where the host does not answer.

    ``pidfd`` is looked at after everything has been read: while it lives, the pid has not been given to another
    process.
    """
    task = Task()
    task.patterns = job.patterns
    task.max_bytes = job.max_bytes
    task.max_files = job.max_files
    task.budget_bytes = job.budget_bytes
    task.deadline_s = job.deadline_s
    task.readahead_bytes = job.readahead_bytes
    task.pmd_bytes = pmd_bytes(root, task.pmd_bytes)
    task.cold = job.residency is Residency.INACTIVE
    task.populate = job.method != "sendfile"
    task.measure_only = job.measure_only
    task.chroot = job.chroot
    task.cpus = job.cpus
    task.nodes = job.nodes
    try:
        _cgroups(root, job, task)
        if job.pid and job.enter_namespaces:
            differing = namespaces.read_differing(root, job.pid) & {"mnt", "user"}
            for name in differing:
                task.namespaces |= namespaces.CLONE_FLAGS[name]
    except KernelError as exc:
        gone = exc.errno in (errno.ENOENT, errno.ESRCH, errno.ENODEV)
        if gone and pidfd is not None and not process.is_alive(pidfd):
            raise ContainerGone("ended before the warm-up began") from exc
        raise
    if pidfd is not None and not process.is_alive(pidfd):
        raise ContainerGone("ended before the warm-up began")
    return task


def pmd_bytes(root: Root, default: int) -> int:
    """``default`` where the kernel has no transparent huge pages, or says nothing that makes sense."""
    try:
        size = int(root.read_text(_PMD_SIZE))
    except (KernelError, ValueError):
        return default
    return size if size >= PAGE_SIZE and size & (size - 1) == 0 else default


def _cgroups(root: Root, job: WarmJob, task: Task) -> None:
    if not job.join_cgroup:
        return
    if job.cgroup_procs:
        files = []
        for path in job.cgroup_procs:
            directory = path.rpartition("/")[0]
            is_memory = any(root.exists(f"{directory}/{name}") for name in _MEMORY_FILES)
            files.append((root.resolve(path), is_memory))
            if is_memory:
                task.owner = root.read_inode(directory)
        task.cgroups = tuple(files)
    elif job.pid:
        memberships = cgroup.read_memberships(root, job.pid)
        memory = cgroup.memory_membership(root, memberships)
        # Memory last: what the moves themselves allocate is not the container's business.
        ordered = [m for m in memberships if m is not memory] + ([memory] if memory else [])
        task.cgroups = tuple((root.resolve(m.procs), m is memory) for m in ordered)
        if memory is not None:
            task.owner = root.read_inode(cgroup.charged_directory(root, memory))


def retry_as_owner(root: Root, job: WarmJob, task: Task, first: Outcome) -> Task | None:
    """The task once more for files that root may not read (root-squashed NFS, FUSE without allow_other): as the
    container's own user, with what the first pass has left of budget and max_bytes. None where there is no such file,
    that user is root too, or it is not known inside the user namespace."""
    paths = tuple(file.path for file in first.files if file.state is FileState.UNREADABLE)
    if not job.pid or not paths or first.state not in (OutcomeState.PARTIAL, OutcomeState.OVER_BUDGET):
        return None
    try:
        uid, gid = process.read_ids(root, job.pid)
        if task.namespaces & namespaces.CLONE_FLAGS["user"]:
            inside_uid = process.id_inside(process.read_id_map(root, job.pid, "uid"), uid)
            inside_gid = process.id_inside(process.read_id_map(root, job.pid, "gid"), gid)
            if inside_uid is None or inside_gid is None:
                return None
            uid, gid = inside_uid, inside_gid
    except KernelError:
        return None
    if uid == 0:
        return None
    again = Task.load(task.dump())
    again.patterns = paths
    again.literal = True
    again.max_bytes = max(0, task.max_bytes - first.wanted_bytes)
    if task.budget_bytes is not None:
        again.budget_bytes = max(0, task.budget_bytes - first.read_bytes)
    again.uid, again.gid = uid, gid
    return again


def measure_again(task: Task, deadline_s: float) -> Task:
    """The task once more, to say what is resident and nothing else."""
    again = Task.load(task.dump())
    again.measure_only = True
    again.cgroups = ()
    again.deadline_s = deadline_s
    return again
