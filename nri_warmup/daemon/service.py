"""Builds the daemon out of its parts, runs it until told to stop, and takes it down in order."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import nri_warmup
from nri_warmup.daemon import logs, paths
from nri_warmup.daemon.control import ControlServer, Message
from nri_warmup.daemon.gate import GateKeeper
from nri_warmup.daemon.hookhealth import HookHealth
from nri_warmup.daemon.node import read_node_state
from nri_warmup.daemon.notify import notify, watchdog_interval_s
from nri_warmup.daemon.pipeline import Pipeline
from nri_warmup.daemon.programs import ProgramHealth, ProgramLog
from nri_warmup.daemon.registry import WarmedLog
from nri_warmup.daemon.settings import Settings
from nri_warmup.daemon.status import render_status
from nri_warmup.daemon.veto import read_hook_veto
from nri_warmup.daemon.warmup import Warmer
from nri_warmup.inject.zygote import Injector
from nri_warmup.kernel.root import Root
from nri_warmup.model.lifecycle import Runtime
from nri_warmup.nri.client import NriClient
from nri_warmup.observe.exporter import Exporter
from nri_warmup.observe.metrics import Registry as Metrics

_CONFIG_POLL_S = 2.0
_NODE_POLL_S = 30.0
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What ``nri-warmup run`` was told. ``explicit_config``: the operator named the file, so it must exist."""

    config_path: str = paths.CONFIG
    nri_socket: str = paths.NRI_SOCKET
    launched_fd: int | None = None
    name: str = "nri-warmup"
    index: str = "90"
    control_socket: str = paths.CONTROL_SOCKET
    metrics_socket: str = paths.METRICS_SOCKET
    metrics_tcp: tuple[str, int] | None = None
    state_dir: str = paths.STATE_DIR
    hook: str = paths.HOOK
    launcher: str = paths.LAUNCHER
    root: str = "/"
    log_level: str = "info"
    log_format: str = "text"
    log_file: str = ""
    explicit_config: bool = False


class Service:
    """One running daemon."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.metrics = Metrics()
        self.metrics.set("nri_warmup_build_info", 1, version=nri_warmup.__version__)
        root = Root(options.root)
        self.settings = Settings(options.config_path, explicit=options.explicit_config, metrics=self.metrics)
        state_dir = _writable_dir(options.state_dir)
        self.injector = Injector(lease_path=f"{os.path.dirname(os.path.abspath(options.control_socket))}/files.lock")
        self.warmer = Warmer(injector=self.injector, root=root, metrics=self.metrics)
        log_dir = f"{os.path.dirname(os.path.abspath(options.control_socket))}/exec"
        self.hooks = HookHealth(options.hook, options.control_socket, self._read_hook_veto)
        self.pipeline = Pipeline(
            config=self.settings.config,
            node=read_node_state(root),
            warmer=self.warmer,
            metrics=self.metrics,
            warmed=WarmedLog(f"{state_dir}/warmed" if state_dir else None),
            on_config_text=self.settings.from_runtime,
            hooks=self.hooks,
            programs=ProgramHealth(options.launcher, log_dir),
        )
        self.program_log = ProgramLog(log_dir, root, self.pipeline.registry.get, self.metrics)
        self.gates = GateKeeper(self.pipeline, root, self.metrics)
        self.client = NriClient(
            self.pipeline,
            socket_path=options.nri_socket,
            name=options.name,
            index=options.index,
            launched_fd=options.launched_fd,
        )
        self.exporter = Exporter(
            {"/metrics": self._metrics_page, "/healthz": self._healthz_page, "/readyz": self._readyz_page}
        )
        self.control = ControlServer(
            options.control_socket,
            {"status": self._status, "reload": self._reload, "gate": self.gates.operation},
        )
        self._root = root
        self._stop = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_config)
        await self.injector.start()
        await self.hooks.check()
        try:
            await self._open_sockets()
            return await self._serve()
        finally:
            notify("STOPPING=1")
            logs.info("stopping")
            await self.control.close()
            await self.program_log.close()
            await self.pipeline.close()
            await self.injector.close()
            await self.exporter.close()

    async def _open_sockets(self) -> None:
        """A launched plugin whose sockets cannot be had goes on without them: the runtime's node depends on it."""
        for what, start in (
            ("control socket", self.control.start),
            ("log of warm-up programs", self.program_log.start),
            (
                "metrics page",
                lambda: self.exporter.start(
                    unix_path=self.options.metrics_socket or None, tcp=self.options.metrics_tcp
                ),
            ),
        ):
            try:
                await start()
            except OSError as error:
                if self.options.launched_fd is None and what == "control socket":
                    raise
                logs.warning(f"no {what}", error=error)

    async def _serve(self) -> int:
        gc.collect()
        gc.freeze()  # what is there now stays: a collection in the middle of a reply need not look at it
        client = asyncio.create_task(self.client.run(), name="nri")
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        helpers = [asyncio.create_task(self._watch(), name="watch")]
        if interval := watchdog_interval_s():
            helpers.append(asyncio.create_task(_pet_watchdog(interval), name="watchdog"))
        notify("READY=1\nSTATUS=connecting to the container runtime")
        done, _ = await asyncio.wait({client, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (client, stopped, *helpers):
            task.cancel()
        await asyncio.gather(client, stopped, *helpers, return_exceptions=True)
        if client in done and not self._stop.is_set():
            error = client.exception()
            logs.warning("the NRI session ended", error=error or "the runtime closed it")
            return 1 if error is not None else 0
        return 0

    # -- configuration ---------------------------------------------------------------------------------------------

    def _reload_config(self) -> bool:
        config = self.settings.reload()
        if config is not None:
            self.pipeline.use_config(config)
        return config is not None

    async def _watch(self) -> None:
        """Look at the configuration file's stamp (a ConfigMap swaps links, so a look beats a watch) and at the node."""
        ticks = 0
        while True:
            await asyncio.sleep(_CONFIG_POLL_S)
            ticks += 1
            try:
                await self.hooks.check()
                if self.settings.changed():
                    self._reload_config()
                if ticks * _CONFIG_POLL_S >= _NODE_POLL_S:
                    ticks = 0
                    self.pipeline.use_node(read_node_state(self._root))
            except Exception:
                logs.LOG.exception("looking after configuration, hook and host failed; tried again")

    def _read_hook_veto(self, runtime: Runtime) -> str:
        return read_hook_veto(self._root, runtime.name, runtime.pid)

    # -- what is shown ---------------------------------------------------------------------------------------------

    async def _status(self, request: Message) -> AsyncIterator[Message]:
        yield {"done": True, **render_status(self.pipeline, self.client.status, self.warmer, self.settings.error)}

    async def _reload(self, request: Message) -> AsyncIterator[Message]:
        yield {
            "done": True,
            "ok": self._reload_config(),
            "source": self.pipeline.config.source,
            "error": self.settings.error,
        }

    def _metrics_page(self) -> tuple[int, str, str]:
        self.warmer.update_gauges()
        self._take_over_counts()
        self.metrics.set("nri_warmup_containers_tracked", len(self.pipeline.registry))
        return 200, _TEXT, self.metrics.render()

    def _take_over_counts(self) -> None:
        """What others count themselves, when the page is asked for."""
        self.metrics.set("nri_warmup_zygote_restarts_total", self.injector.restarts)
        self.metrics.set("nri_warmup_workers_stuck", self.injector.stuck)

    def _healthz_page(self) -> tuple[int, str, str]:
        return 200, "text/plain", "ok\n"

    def _readyz_page(self) -> tuple[int, str, str]:
        """Ready means registered with the runtime, not merely alive."""
        if self.pipeline.connected:
            return 200, "text/plain", "registered\n"
        return 503, "text/plain", f"not registered: {self.client.status.last_error or 'connecting'}\n"


async def _pet_watchdog(interval_s: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)


def _writable_dir(path: str) -> str | None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        logs.warning("no state directory; a restart will check containers again", path=path, error=error)
        return None
    return path


def run_service(options: Options) -> int:
    """Run the daemon in this process until SIGTERM. Returns the exit code."""
    where = logs.setup(level=options.log_level, form=options.log_format, file=options.log_file)
    logs.info("starting", version=nri_warmup.__version__, log=where, python=sys.version.split()[0])

    async def main() -> int:
        return await Service(options).run()

    try:
        return asyncio.run(main())
    except OSError as error:
        logs.warning("cannot start", error=error)
        print(f"nri-warmup run: {error}", file=sys.stderr)
        return 1
