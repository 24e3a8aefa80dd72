"""One byte of each of many pages of our own memory, read by the kernel: process_vm_readv(2) on ourselves.

Not by Python: a page of a file that was truncated meanwhile is SIGBUS for a process that touches it, EFAULT here.
"""

from __future__ import annotations

import ctypes
import errno
import os

from nri_warmup.errors import KernelError
from nri_warmup.kernel.syscalls import PAGE_SIZE

BATCH = 1024
"""IOV_MAX (uapi/linux/uio.h)."""

_libc = ctypes.CDLL(None, use_errno=True)


class PageReader:
    """Holds the vectors (16 KiB) that a batch needs. KernelError where the call is not to be had."""

    def __init__(self) -> None:
        try:
            self._call = _libc.process_vm_readv
        except AttributeError:
            raise KernelError("process_vm_readv", errno.ENOSYS) from None
        self._call.restype = ctypes.c_ssize_t
        self._sink = ctypes.create_string_buffer(BATCH)
        self._local = (ctypes.c_size_t * 2)(ctypes.addressof(self._sink), BATCH)
        self._remote = (ctypes.c_size_t * (2 * BATCH))()
        self._remote[1::2] = [1] * BATCH
        self._pid = os.getpid()

    def touch(self, address: int, pages: int) -> bool:
        """Read a byte of each page. False when one cannot be read (EFAULT): beyond the end of a file, or no memory."""
        while pages > 0:
            count = min(pages, BATCH)
            self._remote[: 2 * count : 2] = list(range(address, address + count * PAGE_SIZE, PAGE_SIZE))
            done = self._call(
                ctypes.c_int(self._pid),
                ctypes.byref(self._local),
                ctypes.c_ulong(1),
                ctypes.byref(self._remote),
                ctypes.c_ulong(count),
                ctypes.c_ulong(0),
            )
            if done < 0 and ctypes.get_errno() != errno.EFAULT:
                raise KernelError("process_vm_readv", ctypes.get_errno())
            if done != count:
                return False
            address += count * PAGE_SIZE
            pages -= count
        return True
