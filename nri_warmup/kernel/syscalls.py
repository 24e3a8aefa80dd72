"""System calls that Python does not offer, through the C library, each a typed function that raises KernelError.

Constants carry the kernel's names and values (uapi headers). ``ctypes.CDLL`` releases the GIL during a call;
``mmap.madvise`` does not, which is one reason why mappings are made here too. The other: an address is a number here,
and nothing in Python can touch the memory behind it, so a truncated file can give EFAULT but never SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import os

from nri_warmup.errors import KernelError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
_libc.fstatfs.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

_MACHINE = os.uname().machine
_NUMBERS_OLD = {
    # name: (x86_64, the generic table of asm-generic/unistd.h: aarch64, riscv64, loongarch64)
    "set_mempolicy": (238, 237),
    "mlock2": (325, 284),
}
_NUMBERS = {
    # From 424 on the number is the same on every architecture.
    "pidfd_open": 434,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "process_madvise": 440,
}

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

SIGKILL = 9
"""The signal module would bring enum with it."""

PR_SET_PDEATHSIG = 1
PR_GET_DUMPABLE = 3
PR_SET_DUMPABLE = 4
PR_CAPBSET_READ = 23
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_GET_NO_NEW_PRIVS = 39
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

CAP_DAC_READ_SEARCH = 2
CAP_FOWNER = 3

PROT_NONE = 0
PROT_READ = 1
MAP_SHARED = 0x01
MAP_PRIVATE = 0x02
MAP_FIXED = 0x10
MAP_ANONYMOUS = 0x20
MAP_NORESERVE = 0x4000
MAP_POPULATE = 0x8000

MADV_NORMAL = 0
MADV_SEQUENTIAL = 2
MADV_WILLNEED = 3
MADV_HUGEPAGE = 14
MADV_COLD = 20
MADV_PAGEOUT = 21
MADV_POPULATE_READ = 22
MADV_COLLAPSE = 25

MLOCK_ONFAULT = 1

MPOL_DEFAULT = 0
MPOL_PREFERRED = 1
MPOL_BIND = 2
MPOL_PREFERRED_MANY = 5

_CAPABILITY_VERSION_3 = 0x20080522
_MAP_FAILED = ctypes.c_void_p(-1).value


def _number(name: str) -> int:
    if name in _NUMBERS:
        return _NUMBERS[name]
    x86_64, generic = _NUMBERS_OLD[name]
    if _MACHINE == "x86_64":
        return x86_64
    if _MACHINE in ("aarch64", "riscv64", "loongarch64"):
        return generic
    raise KernelError(name, errno.ENOSYS, f"no system call number for {_MACHINE}")


def _fail(name: str) -> KernelError:
    return KernelError(name, ctypes.get_errno())


def _syscall(name: str, *args: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(_number(name)), *args))
    if result < 0:
        raise _fail(name)
    return result


def pidfd_open(pid: int) -> int:
    """A close-on-exec descriptor of a process; ESRCH when there is none (Linux 5.3)."""
    return _syscall("pidfd_open", ctypes.c_int(pid), ctypes.c_uint(0))


def pidfd_getfd(pidfd: int, fd: int) -> int:
    """A copy of another process's descriptor; needs PTRACE_MODE_ATTACH (Linux 5.6)."""
    return _syscall("pidfd_getfd", ctypes.c_int(pidfd), ctypes.c_int(fd), ctypes.c_uint(0))


def setns(fd: int, flags: int) -> None:
    """Join namespaces; with a pidfd, ``flags`` is a set of CLONE_NEW* joined at once (Linux 5.8)."""
    if _libc.setns(fd, flags) != 0:
        raise _fail("setns")


def openat2(directory: int, path: str | bytes, flags: int, resolve: int) -> int:
    """``openat`` with rules on how ``path`` may be resolved (Linux 5.6). Retries what the kernel says to retry."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, resolve)
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise KernelError("openat2", errno.EINVAL, "a path that cannot be a file's") from None
    if b"\0" in raw:
        raise KernelError("openat2", errno.EINVAL, "a path with a NUL in it")
    for attempt in range(8):
        try:
            return _syscall(
                "openat2",
                ctypes.c_int(directory),
                ctypes.c_char_p(raw),
                ctypes.byref(how),
                ctypes.c_size_t(ctypes.sizeof(how)),
            )
        except KernelError as exc:
            # EAGAIN: a rename raced with a ".." below the root, the kernel could not be sure (openat2(2)).
            if exc.errno != errno.EAGAIN or attempt == 7:
                raise
    raise AssertionError("unreachable")


def close_range(first: int, last: int) -> None:
    _syscall("close_range", ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0))


def prctl(option: int, arg2: int = 0, arg3: int = 0, arg4: int = 0, arg5: int = 0) -> int:
    result = int(_libc.prctl(option, arg2, arg3, arg4, arg5))
    if result < 0:
        raise KernelError(f"prctl({option})", ctypes.get_errno())
    return result


def capset(capabilities: frozenset[int] | tuple[int, ...]) -> None:
    """Permitted and effective set to exactly these, inheritable to nothing."""
    mask = 0
    for capability in capabilities:
        mask |= 1 << capability
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    if _libc.capset(ctypes.byref(header), ctypes.byref(data)) != 0:
        raise _fail("capset")


def drop_bounding_set(keep: frozenset[int] | tuple[int, ...]) -> None:
    """Take every capability but ``keep`` out of the bounding set, and clear the ambient set. Needs CAP_SETPCAP."""
    for capability in range(64):
        try:
            present = prctl(PR_CAPBSET_READ, capability)
        except KernelError as exc:
            if exc.errno == errno.EINVAL:  # past the kernel's last capability
                break
            raise
        if present and capability not in keep:
            prctl(PR_CAPBSET_DROP, capability)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def mmap(address: int, length: int, protection: int, flags: int, fd: int, offset: int) -> int:
    result = _libc.mmap(address or None, length, protection, flags, fd, offset)
    if result is None or result == _MAP_FAILED:
        raise _fail("mmap")
    return int(result)


def munmap(address: int, length: int) -> None:
    if _libc.munmap(address, length) != 0:
        raise _fail("munmap")


def madvise(address: int, length: int, advice: int) -> None:
    if _libc.madvise(address, length, advice) != 0:
        raise KernelError(f"madvise({advice})", ctypes.get_errno())


def mincore(address: int, length: int) -> bytes:
    """One byte a page, its lowest bit set when the page is in memory and up to date. EAGAIN is retried."""
    pages = (length + PAGE_SIZE - 1) // PAGE_SIZE
    vector = ctypes.create_string_buffer(pages)
    while _libc.mincore(address, length, vector) != 0:
        if ctypes.get_errno() != errno.EAGAIN:
            raise _fail("mincore")
    return vector.raw


def mlock2(address: int, length: int, flags: int) -> None:
    _syscall("mlock2", ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(flags))


def process_madvise(pidfd: int, address: int, length: int, advice: int) -> int:
    """Advise another process's mapping (Linux 5.10); bytes advised."""
    iovec = (ctypes.c_size_t * 2)(address, length)
    return _syscall(
        "process_madvise",
        ctypes.c_int(pidfd),
        ctypes.byref(iovec),
        ctypes.c_size_t(1),
        ctypes.c_int(advice),
        ctypes.c_uint(0),
    )


def fstatfs_type(fd: int) -> int:
    """``f_type`` of the file system behind a descriptor, O_PATH included: the magic numbers of linux/magic.h."""
    buffer = (ctypes.c_long * 64)()
    if _libc.fstatfs(fd, ctypes.byref(buffer)) != 0:
        raise _fail("fstatfs")
    return int(buffer[0]) & 0xFFFFFFFF


def set_mempolicy(mode: int, nodes: tuple[int, ...]) -> None:
    """Where this task's new pages go, page cache that it reads in included."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    words = max(1, (mask.bit_length() + 63) // 64)
    array = (ctypes.c_uint64 * words)(*((mask >> (64 * i)) & 0xFFFFFFFFFFFFFFFF for i in range(words)))
    _syscall("set_mempolicy", ctypes.c_int(mode), ctypes.byref(array), ctypes.c_ulong(words * 64 + 1))


def malloc_trim() -> bool:
    """Give freed heap back to the kernel; False where the C library has no such call (musl)."""
    try:
        trim = _libc.malloc_trim
    except AttributeError:
        return False
    return bool(trim(ctypes.c_size_t(0)))


PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
