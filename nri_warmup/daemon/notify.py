"""sd_notify(3): tells systemd that we are ready, stopping or alive. Silent where there is no NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> bool:
    """Send one message such as ``READY=1``. False where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@":
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect("\0" + address[1:] if address[0] == "@" else address)
        sock.sendall(state.encode())
        return True
    return False


def watchdog_interval_s() -> float | None:
    """Half of WATCHDOG_USEC, the pace sd_watchdog_enabled(3) recommends; None where the unit asks for none."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2_000_000
