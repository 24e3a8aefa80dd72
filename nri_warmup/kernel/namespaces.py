"""Which namespaces of another process differ from ours."""

from __future__ import annotations

from nri_warmup.kernel import syscalls
from nri_warmup.kernel.root import Root

CLONE_FLAGS = {
    "mnt": syscalls.CLONE_NEWNS,
    "cgroup": syscalls.CLONE_NEWCGROUP,
    "uts": syscalls.CLONE_NEWUTS,
    "ipc": syscalls.CLONE_NEWIPC,
    "user": syscalls.CLONE_NEWUSER,
    "pid": syscalls.CLONE_NEWPID,
    "net": syscalls.CLONE_NEWNET,
}


def read_differing(root: Root, pid: int) -> frozenset[str]:
    """Names (``mnt``, ``user`` …) of the namespaces that ``pid`` does not share with this process.

    Only those may be asked of setns(2): joining one's own user namespace is EINVAL.
    """
    differing = set()
    for name in CLONE_FLAGS:
        ours = root.read_link(f"proc/self/ns/{name}")
        if root.read_link(f"proc/{pid}/ns/{name}") != ours:
            differing.add(name)
    return frozenset(differing)


def read_mount_points(root: Root, pid: int) -> frozenset[str]:
    """Mount points as ``pid`` sees them, escapes undone: tells whether a rootfs is mounted below its root (not pivoted
    yet)."""
    points = set()
    for line in root.read_text(f"proc/{pid}/mountinfo").splitlines():
        fields = line.split(" ")
        if len(fields) > 4:
            points.add(unescape(fields[4]))
    return frozenset(points)


def unescape(text: str) -> str:
    r"""procfs writes space, tab, newline and backslash in paths as ``\040`` and the like."""
    if "\\" not in text:
        return text
    parts = text.split("\\")
    out = [parts[0]]
    for part in parts[1:]:
        if len(part) >= 3 and part[:3].isdigit():
            out.append(chr(int(part[:3], 8)) + part[3:])
        else:
            out.append("\\" + part)
    return "".join(out)
