"""Where a plugin's log goes: a launched one has /dev/null for stdout and stderr, and still has to reach somebody."""

from __future__ import annotations

import logging
import logging.handlers
import os
import socket
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

SYSLOG_SOCKETS = ("/dev/log", "/run/systemd/journal/dev-log")
LOG_DIRECTORIES = ("/var/log", "/run", "/tmp")
_NULL_DEVICE = os.makedev(1, 3)


def goes_nowhere(fd: int) -> bool:
    """Whether what is written to this file descriptor is lost: closed, or /dev/null."""
    try:
        status = os.fstat(fd)
    except OSError:
        return True
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL_DEVICE


def _somebody_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
    return True


def log_handler(
    name: str,
    *,
    stderr_fd: int = 2,
    sockets: Sequence[str] = SYSLOG_SOCKETS,
    directories: Sequence[str] = LOG_DIRECTORIES,
) -> logging.Handler:
    """stderr if anybody reads it, else syslog or the journal's syslog socket, else a file ``<name>.log``."""
    if not goes_nowhere(stderr_fd):
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        return handler
    for path in sockets:
        # The handler itself says nothing where nobody listens.
        if not _somebody_listens(path):
            continue
        handler = logging.handlers.SysLogHandler(path, facility=logging.handlers.SysLogHandler.LOG_DAEMON)
        handler.setFormatter(logging.Formatter(f"{name}[{os.getpid()}]: %(levelname)s %(message)s"))
        return handler
    for directory in directories:
        try:
            handler = logging.handlers.RotatingFileHandler(
                Path(directory, f"{name}.log"), maxBytes=4 << 20, backupCount=1, encoding="utf-8"
            )
        except OSError:
            continue
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        return handler
    return logging.NullHandler()


def configure_logging(name: str, level: str = "info") -> None:
    """Root logger to ``log_handler(name)``."""
    logging.basicConfig(level=level.upper(), handlers=[log_handler(name)], force=True)
