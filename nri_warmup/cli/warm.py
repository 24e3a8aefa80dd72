"""``nri-warmup warm PATH…``: reads files into the page cache now, as the host or as a container sees them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys

from nri_warmup.cli import main as cli
from nri_warmup.errors import ConfigError
from nri_warmup.units import parse_duration, parse_size, render_duration, render_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file or pattern; ** crosses directories")
    parser.add_argument("--pid", type=int, default=0, help="as this process sees them, charged to its cgroup")
    parser.add_argument("--cgroup", default="", metavar="DIR", help="charge the pages to this cgroup directory")
    parser.add_argument("--max-bytes", default="", metavar="SIZE", help="read at most this much")
    parser.add_argument(
        "--deadline", default="1h", metavar="DURATION", help="give up after this long (default %(default)s)"
    )
    parser.add_argument("--residency", default="inactive", choices=("inactive", "active"))
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--dry-run", action="store_true", help="only say what is resident already")


def run(args: argparse.Namespace) -> int:
    from nri_warmup.daemon.local import exit_code, warm_once
    from nri_warmup.daemon.status import render_outcome
    from nri_warmup.model.outcome import Progress
    from nri_warmup.model.profile import Residency

    if args.pid and args.cgroup:
        raise ConfigError("--pid and --cgroup exclude each other: a process has a cgroup of its own")
    patterns = tuple(args.paths) if args.pid else tuple(os.path.abspath(path) for path in args.paths)
    show = not args.quiet and not args.json and sys.stderr.isatty()

    def on_progress(progress: Progress) -> None:
        if show and progress.wanted_bytes:
            share = progress.resident_bytes / progress.wanted_bytes
            text = f"{render_size(progress.resident_bytes)} of {render_size(progress.wanted_bytes)}"
            print(f"\r\033[K{share * 100:5.1f}% {text}", end="", file=sys.stderr, flush=True)

    outcome = asyncio.run(
        warm_once(
            patterns=patterns,
            pid=args.pid,
            cgroup_dir=args.cgroup,
            max_bytes=cli.value("--max-bytes", args.max_bytes, parse_size) if args.max_bytes else None,
            deadline_s=cli.value("--deadline", args.deadline, parse_duration),
            residency=Residency(args.residency),
            measure_only=args.dry_run,
            on_progress=on_progress,
        )
    )
    if show:
        print("\r\033[K", end="", file=sys.stderr)
    if args.json:
        print(json.dumps(render_outcome(outcome)))
    else:
        _print(outcome)
    return exit_code(outcome)


def _print(outcome: object) -> None:
    from nri_warmup.daemon.logs import clean
    from nri_warmup.model.outcome import Outcome
    from nri_warmup.model.warmset import FileState

    assert isinstance(outcome, Outcome)
    coverage = "unknown" if outcome.coverage is None else f"{outcome.coverage * 100:.1f}%"
    print(
        f"{outcome.state.value}: {outcome.files_total} files, {render_size(outcome.wanted_bytes)} wanted, "
        f"coverage {coverage}, {render_size(outcome.read_bytes)} read in {render_duration(outcome.seconds)}"
        + (f" ({clean(outcome.reason)})" if outcome.reason else "")
    )
    for item in outcome.files:
        if item.state not in (FileState.WARMED, FileState.EMPTY):
            print(f"  {item.state.value}: {clean(item.path)}" + (f": {clean(item.detail)}" if item.detail else ""))
