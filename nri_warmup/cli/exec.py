"""``nri-warmup exec -- CMD``: a command with its files warm, in a cgroup and mount namespace of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from nri_warmup.cli import main as cli
from nri_warmup.daemon import paths
from nri_warmup.errors import ConfigError
from nri_warmup.units import parse_duration, parse_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default="", help=f"operator's configuration (default {paths.CONFIG} if it exists)")
    parser.add_argument("--profile", default="", help="profile to use; without it, the first selector that matches")
    parser.add_argument("--file", action="append", default=[], metavar="PATTERN", help="warm this too; repeatable")
    parser.add_argument(
        "--label", action="append", default=[], metavar="K=V", help="label that selectors see; repeatable"
    )
    parser.add_argument(
        "--gate", choices=("none", "hook"), default="", help="hook: wait until warm before the command runs"
    )
    parser.add_argument("--deadline", default="", metavar="DURATION", help="give up warming after this long")
    parser.add_argument("--memory-limit", default="", metavar="SIZE", help="memory limit of the command's cgroup")
    parser.add_argument(
        "--report",
        default="",
        metavar="FILE",
        help="write the outcome as JSON here as soon as it is warm; - for stderr",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD…", help="the command and its arguments")


def run(args: argparse.Namespace) -> int:
    from nri_warmup.daemon.local import LocalRun, exec_plan, run_local
    from nri_warmup.daemon.status import render_outcome
    from nri_warmup.model.outcome import Outcome, OutcomeState

    command = tuple(args.command[1:] if args.command[:1] == ["--"] else args.command)
    if not command and not args.dry_run:
        raise ConfigError("no command; write for example: nri-warmup exec --file '/models/**' -- server --port 8000")
    annotations = {f"{key}.nri-warmup.dev": value for key, value in _asked(args).items()}
    plan = exec_plan(args.config, labels=_pairs(args.label), annotations=annotations, command=command)
    if args.dry_run:
        from nri_warmup.policy.render import render_plan_text

        print(render_plan_text(plan))
        return cli.OK
    limit = cli.value("--memory-limit", args.memory_limit, parse_size) if args.memory_limit else None

    def on_outcome(outcome: Outcome) -> None:
        _report(args.report, render_outcome(outcome))

    result = run_local(
        LocalRun(
            command=command,
            plan=plan,
            memory_limit_bytes=limit,
            on_outcome=on_outcome,
        )
    )
    if result.outcome is None or result.outcome.state is OutcomeState.CANCELLED:
        _report(args.report, render_outcome(result.outcome) if result.outcome else {"state": "skipped"})
    return result.exit_code


def _report(path: str, content: dict[str, Any]) -> None:
    """Written as soon as the warm-up ends, by rename: whoever waits for the file never reads half of it."""
    if path == "-":
        print(json.dumps(content), file=sys.stderr)
    elif path:
        with open(f"{path}.tmp", "w") as stream:
            stream.write(json.dumps(content) + "\n")
        os.replace(f"{path}.tmp", path)


def _asked(args: argparse.Namespace) -> dict[str, str]:
    asked = {}
    if args.profile:
        asked["profile"] = args.profile
    if args.file:
        asked["files"] = "\n".join(args.file)
    if args.gate:
        asked["gate"] = args.gate
    if args.deadline:
        cli.value("--deadline", args.deadline, parse_duration)
        asked["deadline"] = args.deadline
    return asked


def _pairs(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--label: {text!r} has no '='; write for example app=llm")
    return dict(text.split("=", 1) for text in texts)
