"""From a job to a task: everything that only the host's view can tell of the target, read before a worker is forked."""

from __future__ import annotations

import errno

from nri_warmup.errors import ContainerGone, KernelError
from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.wire import Task
from nri_warmup.kernel import cgroup, namespaces, process
from nri_warmup.kernel.root import Root
from nri_warmup.model.profile import Residency

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


def retry_as_owner(root: Root, job: WarmJob, task: Task, paths: tuple[str, ...]) -> Task | None:
    """The task once more for files that root may not read (root-squashed NFS, FUSE without allow_other): as the
    container's own user. None where that is root too, or not known inside the user namespace."""
    if not job.pid:
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
    again.uid, again.gid = uid, gid
    return again
