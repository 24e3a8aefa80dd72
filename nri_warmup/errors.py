"""The exception family. Every error says whose fault it is, and where.

RequestError (the workload's author), ConfigError (the operator), LocalProtocolError and RemoteProtocolError (the wire),
KernelError (a path and an errno), ContainerGone, DeadlineExceeded. No bare OSError leaves ``kernel/``.
"""

from __future__ import annotations

import errno as _errno


class WarmupError(Exception):
    """Base of every error this package raises on purpose."""


class RequestError(WarmupError):
    """What a workload's author wrote cannot be understood; the container starts anyway."""


class ConfigError(WarmupError):
    """What the operator wrote cannot be understood. ``str()`` begins with the place: ``config.yaml: limits.jobs: …``.

    ``place`` is the part inside the file alone (``limits.jobs``), for whoever can turn it into a line.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class ProtocolError(WarmupError):
    """Something is wrong on the wire."""


class LocalProtocolError(ProtocolError):
    """Our side tried to send what the protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The other side sent what the protocol does not allow."""


class KernelError(WarmupError):
    """A file of procfs, sysfs or cgroupfs, or a system call, refused.

    ``path`` is the file or the name of the system call, ``errno`` the number the kernel gave.
    """

    def __init__(self, path: str, errno: int, detail: str = "") -> None:
        self.path = path
        self.errno = errno
        self.detail = detail
        name = _errno.errorcode.get(errno, str(errno))
        super().__init__(f"{path}: {name}" + (f" ({detail})" if detail else ""))


class ContainerGone(WarmupError):
    """The container ended while something was being done for it: a named outcome, not a fault."""


class DeadlineExceeded(WarmupError):
    """The time allowed was used up."""
