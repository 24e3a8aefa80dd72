"""``nri-warmup run``: the plugin. Registers, serves until told to stop, reconnects when the runtime restarts."""

from __future__ import annotations

import argparse
import os

from nri_warmup.cli import main as cli
from nri_warmup.daemon import paths
from nri_warmup.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default=paths.CONFIG, help="operator's configuration (default %(default)s)")
    parser.add_argument("--nri-socket", default=paths.NRI_SOCKET, help="the runtime's NRI socket (default %(default)s)")
    parser.add_argument("--name", default="nri-warmup", help="plugin name (default %(default)s)")
    parser.add_argument("--index", default="90", help="plugin index, two digits (default %(default)s)")
    parser.add_argument(
        "--control-socket", default=paths.CONTROL_SOCKET, help="for status and hooks (default %(default)s)"
    )
    parser.add_argument("--metrics-socket", default=paths.METRICS_SOCKET, help="Prometheus page (default %(default)s)")
    parser.add_argument("--metrics-tcp", default="", metavar="HOST:PORT", help="the same over TCP; off by default")
    parser.add_argument("--state-dir", default=paths.STATE_DIR, help="what survives a restart (default %(default)s)")
    parser.add_argument(
        "--hook", default=paths.HOOK, help="the OCI hook's executable, for gate: hook (default %(default)s)"
    )
    parser.add_argument(
        "--launcher", default=paths.LAUNCHER, help="the launcher of warm-up programs, for exec: (default %(default)s)"
    )
    parser.add_argument("--root", default="/", help=argparse.SUPPRESS)
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", default="text", choices=("text", "json"))
    parser.add_argument("--log-file", default="", help="write the log here instead of stderr or syslog")
    parser.add_argument("--check", action="store_true", help="read the configuration, say what it means, and stop")


def _tcp(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--metrics-tcp: {text!r} is not HOST:PORT; write for example 127.0.0.1:9105")
    return host.strip("[]") or "127.0.0.1", int(port)


def run(args: argparse.Namespace) -> int:
    from nri_warmup.daemon.service import Options, run_service

    launched = os.environ.get("NRI_PLUGIN_SOCKET", "")
    options = Options(
        config_path=args.config,
        nri_socket=args.nri_socket,
        launched_fd=int(launched) if launched.isdigit() else None,
        name=args.name,
        index=args.index,
        control_socket=args.control_socket,
        metrics_socket=args.metrics_socket,
        metrics_tcp=_tcp(args.metrics_tcp),
        state_dir=args.state_dir,
        hook=args.hook,
        launcher=args.launcher,
        root=args.root,
        log_level=args.log_level,
        log_format=args.log_format,
        log_file=args.log_file,
        explicit_config=args.config != paths.CONFIG,
    )
    if args.check:
        from nri_warmup.daemon.settings import Settings
        from nri_warmup.observe.metrics import Registry

        config = Settings(options.config_path, explicit=options.explicit_config, metrics=Registry()).config
        print(f"{config.source}: {len(config.profiles)} profiles, {len(config.selectors)} selectors")
        return cli.OK
    return run_service(options)
