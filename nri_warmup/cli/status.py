"""``nri-warmup status``: what the running plugin is doing; a live view on a terminal with --watch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from nri_warmup.cli import main as cli
from nri_warmup.daemon import paths
from nri_warmup.daemon.control import request
from nri_warmup.daemon.logs import clean
from nri_warmup.units import render_duration, render_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--watch", action="store_true", help="keep showing, with progress, until interrupted")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two looks with --watch")
    parser.add_argument("--control-socket", default=paths.CONTROL_SOCKET, help="default %(default)s")


def _ask(path: str) -> dict[str, Any] | None:
    try:
        return request(path, {"op": "status"})
    except (FileNotFoundError, ConnectionRefusedError):
        print(
            f"nri-warmup status: nobody answers at {path}; is the plugin running?\n"
            "Start it with `nri-warmup run` (or `systemctl start nri-warmup`), or name its --control-socket.",
            file=sys.stderr,
        )
    except OSError as error:
        print(f"nri-warmup status: {path}: {error}", file=sys.stderr)
    return None


def _bar(share: float | None, width: int = 20) -> str:
    if share is None:
        return "-" * width
    full = round(min(1.0, max(0.0, share)) * width)
    return "#" * full + "." * (width - full)


def render_text(status: dict[str, Any]) -> str:
    """The whole view as lines of text."""
    connection = status["connection"]
    lines = [
        f"nri-warmup {status['version']}: {connection['state']}"
        + (f" with {connection['runtime']} {connection['runtime_version']}" if connection["runtime"] else "")
        + (f", {connection['disconnects']} disconnects" if connection["disconnects"] else "")
        + (f" (last error: {clean(connection['last_error'])})" if connection["last_error"] else ""),
        f"config: {status['config']['source']} (profiles: {', '.join(status['config']['profiles']) or 'none'})"
        + (f"; a newer one was refused: {clean(status['config']['error'])}" if status["config"]["error"] else ""),
        f"jobs: {status['jobs']['running']} running, {status['jobs']['queued']} queued",
    ]
    for title, key in (("containers", "containers"), ("recent", "recent")):
        if status[key]:
            lines += ["", f"{title}:"]
            lines += [_entry_line(entry) for entry in status[key]]
    return "\n".join(lines)


def _entry_line(entry: dict[str, Any]) -> str:
    name = clean(f"{entry['namespace']}/{entry['pod']}/{entry['container']}")
    outcome = entry["outcome"]
    if outcome is not None:
        coverage = outcome["coverage"]
        tail = f"{render_duration(outcome['seconds'])}, {render_size(outcome['read_bytes'])} read"
        if outcome["reason"]:
            tail += f": {clean(outcome['reason'])}"
    else:
        progress = entry["progress"]
        wanted = progress["wanted_bytes"]
        coverage = progress["resident_bytes"] / wanted if wanted else None
        tail = f"{render_size(progress['resident_bytes'])} of {render_size(wanted)}" if wanted else ""
        if entry["state"] == "skipped" and entry["reasons"]:
            tail = clean(entry["reasons"][-1]["text"])
    late = " (late)" if entry["late"] else ""
    percent = f"{coverage * 100:5.1f}%" if coverage is not None else "     -"
    return f"  {name:50} {entry['profile'] or '-':12} {entry['state']:14} [{_bar(coverage)}] {percent} {tail}{late}"


def run(args: argparse.Namespace) -> int:
    while True:
        status = _ask(args.control_socket)
        if status is None:
            return cli.FAILED
        if args.json:
            print(json.dumps(status, indent=None if args.watch else 2), flush=True)
        else:
            text = render_text(status)
            print(f"\033[H\033[2J{text}" if args.watch and sys.stdout.isatty() else text, flush=True)
        if not args.watch:
            return cli.OK if status["connection"]["state"] == "registered" else cli.FAILED
        time.sleep(max(0.1, args.interval))
