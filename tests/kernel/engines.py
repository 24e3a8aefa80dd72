"""The engine in a process of the test's own, where the kernel it meets can be made an older or a stranger one."""

from __future__ import annotations

import ctypes
import os
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

from nri_warmup.inject.engine import Engine
from nri_warmup.inject.files import Bounds, Finder
from nri_warmup.inject.wire import Field, Report, Task

_X86_64 = {"madvise": 28, "fadvise64": 221, "cachestat": 451}
_GENERIC = {"madvise": 233, "fadvise64": 223, "cachestat": 451}


class Meddler(Report):
    """A report that does something to the file when the first progress in the middle of it is told."""

    def __init__(self, action: object) -> None:
        self.records: list[tuple[Field, ...]] = []
        self._action = action

    def send(self, *fields: Field) -> None:
        self.records.append(fields)
        if fields[0] == "progress" and isinstance(fields[3], int) and fields[3] > 0 and callable(self._action):
            action, self._action = self._action, None
            action()


def run_engine(path: Path | str, action: object = None, **fields: object) -> tuple[Engine, Meddler, str]:
    """The engine in this process, with a progress record at every step."""
    task = Task()
    task.patterns = (str(path),)
    for name, value in fields.items():
        setattr(task, name, value)
    root, self_fd = os.open("/", os.O_PATH), os.open("/proc/self/fd", os.O_PATH)
    null = os.open("/dev/null", os.O_WRONLY)
    report = Meddler(action)
    engine = Engine(task, Finder(root, self_fd, Bounds(1000)), report, None, null, None)
    engine.report_s = 0.0
    try:
        state, _ = engine.run()
    finally:
        for fd in (root, self_fd, null):
            os.close(fd)
    return engine, report, state


def refuse(call: str, error: int, *, argument: tuple[int, int] | None = None) -> None:
    """A seccomp filter under which a system call does nothing and fails with ``error``; 0 is success all the same.
    With ``argument``, (index, low half) of it, only such calls. For good: call it in a child."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = (_X86_64 if os.uname().machine == "x86_64" else _GENERIC)[call]

    def step(code: int, jt: int, jf: int, k: int) -> bytes:
        return struct.pack("HBBI", code, jt, jf, k)

    program = step(0x20, 0, 0, 0)  # load the number of the call
    if argument is None:
        program += step(0x15, 0, 1, number)
    else:
        program += step(0x15, 0, 3, number) + step(0x20, 0, 0, 16 + 8 * argument[0]) + step(0x15, 0, 1, argument[1])
    program += step(0x06, 0, 0, 0x00050000 | error) + step(0x06, 0, 0, 0x7FFF0000)
    buffer = ctypes.create_string_buffer(program)
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0) == 0, os.strerror(ctypes.get_errno())


def in_child(action: Callable[[], object]) -> str:
    """``repr`` of what ``action`` returns in a forked child, or its traceback."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = repr(action())
        except BaseException:
            answer = traceback.format_exc()
        try:
            os.write(write, answer.encode()[-4000:])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer
