"""Where the daemon's log goes, and in which form.

A launched plugin has stdio on /dev/null: its log must still reach someone. Lines are ``key=value`` text, or one JSON
object each. Tenant strings are stripped of control characters, so that a container's name cannot forge a line.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import stat
import sys
import time
from typing import Any

LOG = logging.getLogger("nri_warmup")
_DEVNULL = os.makedev(1, 3)
_SYSLOG_SOCKET = "/dev/log"
_FALLBACK_FILE = "/var/log/nri-warmup.log"
_MAX_VALUE = 512


def clean(value: object) -> str:
    """Text safe for a terminal and for one line of a log."""
    text = str(value)
    if len(text) > _MAX_VALUE:
        text = text[:_MAX_VALUE] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        tail = "".join(f" {key}={_quoted(clean(value))}" for key, value in fields.items())
        line = f"{_stamp(record)} {record.levelname.lower():7} {clean(record.getMessage())}{tail}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        entry.update({key: _plain(value) for key, value in getattr(record, "fields", {}).items()})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | bool) or value is None else clean(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "=" in text else text


def _stamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def log(level: int, message: str, **fields: object) -> None:
    """One structured line."""
    if LOG.isEnabledFor(level):
        LOG.log(level, message, extra={"fields": fields})


def info(message: str, **fields: object) -> None:
    log(logging.INFO, message, **fields)


def warning(message: str, **fields: object) -> None:
    log(logging.WARNING, message, **fields)


def debug(message: str, **fields: object) -> None:
    log(logging.DEBUG, message, **fields)


def _stderr_is_read() -> bool:
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return not (stat.S_ISCHR(status.st_mode) and status.st_rdev == _DEVNULL)


def setup(*, level: str = "info", form: str = "text", file: str = "") -> str:
    """Configure logging; returns where the log goes: stderr, or the file, or syslog when stderr is /dev/null."""
    handler: logging.Handler
    if file:
        handler, where = logging.handlers.WatchedFileHandler(file), file
    elif _stderr_is_read():
        handler, where = logging.StreamHandler(sys.stderr), "stderr"
    elif os.path.exists(_SYSLOG_SOCKET):
        handler, where = logging.handlers.SysLogHandler(_SYSLOG_SOCKET), "syslog"
        handler.ident = "nri-warmup: "
    else:
        handler, where = logging.handlers.WatchedFileHandler(_FALLBACK_FILE, delay=True), _FALLBACK_FILE
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for logger in (LOG, logging.getLogger("asyncio")):
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper() if logger is LOG else logging.WARNING)
        logger.propagate = False
    return where
