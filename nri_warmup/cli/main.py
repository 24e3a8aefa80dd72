"""``nri-warmup VERB``: finds the verb, imports it, runs it.

Exit codes: 0 ok, 1 failed, 2 usage, 3 partial, 4 unsupported here, 124 deadline.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

import nri_warmup
from nri_warmup.errors import ConfigError, DeadlineExceeded, KernelError, WarmupError

OK, FAILED, USAGE, PARTIAL, UNSUPPORTED, DEADLINE = 0, 1, 2, 3, 4, 124

VERBS: dict[str, str] = {
    "run": "run the plugin: connect to the container runtime and warm what its containers ask for",
    "status": "what the running plugin is doing",
    "plan": "explain what would be done for a container, and why",
    "warm": "read files into the page cache now",
    "exec": "run a command with its files warm, in its own cgroup and mount namespace",
    "demo": "measure a model server's first request, cold and warmed, on this machine",
    "completion": "print a completion script for bash, zsh or fish",
}


T = TypeVar("T")


def value(option: str, text: str, parse: Callable[[str], T]) -> T:
    """An option's text by one of ``units``' readers; ConfigError names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


class Verb(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
    def run(self, args: argparse.Namespace) -> int: ...


def load(verb: str) -> Verb:
    return cast(Verb, importlib.import_module(f"nri_warmup.cli.{verb}"))


def parser_for(verb: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"nri-warmup {verb}", description=VERBS[verb].capitalize() + ".")
    load(verb).add_arguments(parser)
    return parser


def _usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:{width}}  {text}" for verb, text in VERBS.items())
    return f"usage: nri-warmup VERB [options]\n\n{verbs}\n\n`nri-warmup VERB --help` tells the options of a verb.\n"


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[1] in VERBS:
            parser_for(arguments[1]).print_help()
        else:
            print(_usage(), end="")
        return OK if arguments else USAGE
    if arguments[0] in ("-V", "--version", "version"):
        print(f"nri-warmup {nri_warmup.__version__}")
        return OK
    verb = arguments[0]
    if verb not in VERBS:
        import difflib

        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"nri-warmup: {verb!r} is not a verb{hint}\n\n{_usage()}", file=sys.stderr, end="")
        return USAGE
    return _run(verb, arguments[1:])


def _run(verb: str, rest: list[str]) -> int:
    try:
        return load(verb).run(parser_for(verb).parse_args(rest))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except ConfigError as error:
        print(f"nri-warmup {verb}: {error}", file=sys.stderr)
        return USAGE
    except DeadlineExceeded as error:
        print(f"nri-warmup {verb}: {error}", file=sys.stderr)
        return DEADLINE
    except (WarmupError, KernelError) as error:
        print(f"nri-warmup {verb}: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except OSError as error:
        print(f"nri-warmup {verb}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
