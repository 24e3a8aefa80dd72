"""A container without a runtime, for tests: run as ``python -I container_child.py JSON``.

Own mount namespace (and user namespace), pivoted into a root, the capabilities that runtimes give by default. Then it
serves lines on stdin, as a hostile process in the container would: ``getfd PID``, ``ptrace PID``, ``open PATH``,
``swap``. Answers ```ok`` or the name of an errno. Ends with stdin.
"""

import ctypes
import errno
import json
import os
import signal
import sys

libc = ctypes.CDLL(None, use_errno=True)
MS_BIND, MS_REC, MS_SLAVE, MNT_DETACH = 4096, 16384, 1 << 19, 2
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PIVOT_ROOT = 155 if os.uname().machine == "x86_64" else 41
PTRACE_SEIZE = 0x4206
DEFAULT_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD AUDIT_WRITE
SETFCAP."""


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, flags: int) -> None:
    check(libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None), f"mount {target}")


def build(root: str, binds: list[list[str]], pivot: bool) -> None:
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", MS_REC | MS_SLAVE)
    mount(root, root, MS_BIND | MS_REC)
    for source, target in binds:
        mount(source, root + target, MS_BIND | MS_REC)
    if pivot:
        os.chdir(root)
        check(libc.syscall(PIVOT_ROOT, b".", b"."), "pivot_root")
        check(libc.umount2(b".", MNT_DETACH), "umount2")
        os.chdir("/")


def drop_capabilities() -> None:
    for capability in range(64):
        if capability not in DEFAULT_CAPABILITIES and libc.prctl(24, capability, 0, 0, 0) != 0:
            break
    mask = sum(1 << capability for capability in DEFAULT_CAPABILITIES)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    check(libc.capset(ctypes.byref(header), ctypes.byref(data)), "capset")


def attack(words: list[str]) -> str:
    kind, argument = words[0], " ".join(words[1:])
    if kind == "getfd":
        pidfd = libc.syscall(434, int(argument), 0)
        if pidfd < 0:
            return errno.errorcode[ctypes.get_errno()]
        for fd in range(64):
            if libc.syscall(438, pidfd, fd, 0) >= 0:
                return "ok"
            if ctypes.get_errno() != errno.EBADF:
                return errno.errorcode[ctypes.get_errno()]
        return "EBADF"
    if kind == "ptrace":
        result = libc.ptrace(PTRACE_SEIZE, int(argument), None, None)
        return "ok" if result == 0 else errno.errorcode[ctypes.get_errno()]
    if kind == "child":
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            signal.pause()
        return str(pid)
    if kind in ("open", "list", "link"):
        try:
            if kind == "open":
                os.close(os.open(argument, os.O_RDONLY))
            elif kind == "list":
                os.listdir(argument)
            else:
                os.readlink(argument)
        except OSError as exc:
            return errno.errorcode[exc.errno or 0]
        return "ok"
    return "EINVAL"


def main() -> None:
    order = json.loads(sys.argv[1])
    errno.errorcode.get(1)
    if order["user_namespace"]:
        check(libc.unshare(CLONE_NEWUSER), "unshare user")
        print("mapme", flush=True)
        sys.stdin.readline()
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    build(order["root"], order["binds"], order["pivot"])
    if order["uid"]:
        os.setgroups([])
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    elif not order["privileged"]:
        drop_capabilities()
    check(libc.prctl(4, 1, 0, 0, 0), "dumpable")  # as after an exec
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        print(attack(line.split()), flush=True)


if __name__ == "__main__":
    main()
