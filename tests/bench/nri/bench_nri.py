"""Our NRI plugin, the whole daemon, against a minimal Go plugin on the runtime's own library, in one run.

Both get the same: a runtime of their own (tests/go), the same pods in the same order, in turns of a fraction of a
second that change sides, in rounds of fresh processes. A ratio is ours / Go's within one turn; reported are the
medians, and as spread the quartiles. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.nri.processes import cpu_of_tree, memory_of_tree
from tests.component.daemon_process import Daemon
from tests.go.harness import CI_VERSIONS, GoRuntime, Json, PluginProcess, RuntimeRefused, build, go_plugin

CONTAINER_BYTES = 3072
POD = {"labels": {"example.com/serves": "model"}, "annotations": {"reference.example/ask": "1"}}
"""What a labelled pod carries: one selector of ours, and what the Go plugin answers."""
EVENTS = [
    "CreateContainer", "PostCreateContainer", "StartContainer", "StopContainer", "RemoveContainer",
    "StopPodSandbox", "RemovePodSandbox",
]  # fmt: skip
"""One pod's life, of the events that both sides subscribe to: what ours leaves out would cost it nothing at all."""
EXPECT = {"ours": "planned.nri-warmup.dev", "go": "reference.example/answer"}
SIDES = ("ours", "go")
SETTLE_S = 2.0
"""Between a large Synchronize and the look at memory: both sides may give back what they will."""

# name of a figure -> (unit, higher is better, the largest or smallest allowed ratio)
RATIOS = {
    "create_unlabelled_p50": ("us", False, 1.0),
    "create_labelled_p50": ("us", False, 1.5),
    "events_per_s": ("", True, 1.0),
    "cpu_per_event": ("us", False, 1.0),
    "sync_6000": ("ms", False, 1.0),
    "pss_after_sync": ("kib", False, 1.0),
}
ALONE = ("create_unlabelled_p99_us", "create_labelled_p99_us", "uss_after_sync_kib", "pss_idle_kib", "idle_cpu_percent")


@dataclass
class Figures:
    """figure -> side -> one value a turn."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, name: str, side: str, value: float) -> None:
        self.values.setdefault(name, {}).setdefault(side, []).append(value)

    def median(self, name: str, side: str) -> float:
        return statistics.median(self.values[name][side])

    def alone(self, name: str, side: str) -> float:
        """One of ALONE: a median over the rounds, or a quantile of all paced creates."""
        if name.endswith("_p99_us"):
            return statistics.quantiles(self.values[name.replace("_p99_us", "_paced")][side], n=100)[98]
        return self.median(name.removesuffix("_kib"), side)

    def ratios(self, name: str) -> list[float]:
        return [ours / go for ours, go in zip(*(self.values[name][side] for side in SIDES), strict=True)]


class Plugin:
    """One side: a runtime and the plugin that is connected to it."""

    def __init__(self, side: str, version: str, binaries: Path, directory: Path) -> None:
        self.side = side
        self.directory = directory
        socket = directory / "nri.sock"
        self.runtime = GoRuntime(version, socket, "-request-timeout", "20s", trace=False, binaries=binaries)
        self.process: Daemon | PluginProcess | None = None
        self.pid = self.sync_us = 0

    def connect(self, containers: int) -> None:
        """Starts the plugin on a node with so many containers; everything was told to it afterwards."""
        self.runtime.call("populate", count=containers, bytes=CONTAINER_BYTES, labelled_every=100, **POD)
        assert self.runtime.socket
        if self.side == "ours":
            self.process = Daemon(self.directory / "daemon", self.runtime.socket, "--log-level", "warning")
        else:
            self.process = go_plugin(self.runtime, self.directory / "plugin.log")
        self.pid = self.process.pid
        try:
            self.runtime.wait_connected()
        except RuntimeRefused as error:
            raise SystemExit(f"{self.side} did not connect: {error}\n{self.process.log.read_text()[-4000:]}") from None
        self.sync_us = self.runtime.state()["syncs"][-1]["us"]

    def load(self, **fields: object) -> Json:
        """Runs events; every labelled container must have been answered, or nothing was measured."""
        result = self.runtime.call(
            "load", events=EVENTS, bytes=CONTAINER_BYTES, expect=EXPECT[self.side], deadline_s=600, **POD, **fields
        )
        labelled = result["latency_us"].get("CreateContainer/labelled", {"n": 0})["n"]
        assert result["adjusted"] == labelled, f"{self.side}: {result['adjusted']} of {labelled} were answered"
        return result

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
        self.runtime.close()


@contextmanager
def plugin(side: str, version: str, binaries: Path, containers: int) -> Iterator[Plugin]:
    with tempfile.TemporaryDirectory(prefix="nri-bench-") as directory:
        running = Plugin(side, version, binaries, Path(directory))
        try:
            running.connect(containers)
            yield running
        finally:
            running.close()


def measure_sync(figures: Figures, running: Plugin) -> None:
    figures.add("sync_6000", running.side, running.sync_us / 1000)
    time.sleep(SETTLE_S)
    memory = memory_of_tree(running.pid)
    figures.add("pss_after_sync", running.side, memory.pss_kib)
    figures.add("uss_after_sync", running.side, memory.uss_kib)


def measure_events(figures: Figures, pair: tuple[Plugin, Plugin], options: argparse.Namespace) -> None:
    """Short turns of both, so that whatever else the machine does meets both alike."""
    for running in pair:
        figures.add("pss_idle", running.side, memory_of_tree(running.pid).pss_kib)
        running.load(lives=50, labelled_every=2)
    for turn in range(options.turns):
        for running in pair if turn % 2 == 0 else pair[::-1]:
            back_to_back(figures, running, options)
    for turn in range(options.paced_turns):
        for running in pair if turn % 2 == 0 else pair[::-1]:
            result = running.load(lives=options.lives, labelled_every=2, rate=options.rate, raw="CreateContainer")
            for kind in ("unlabelled", "labelled"):
                for value in result["latency_us"][f"CreateContainer/{kind}"]["raw"]:
                    figures.add(f"create_{kind}_paced", running.side, value)


def back_to_back(figures: Figures, running: Plugin, options: argparse.Namespace) -> None:
    side = running.side
    before = cpu_of_tree(running.pid)
    result = running.load(lives=options.lives, labelled_every=options.labelled_every)
    figures.add("cpu_per_event", side, (cpu_of_tree(running.pid) - before) / result["events"] * 1e6)
    figures.add("events_per_s", side, result["events_per_s"])
    figures.add("create_unlabelled_p50", side, result["latency_us"]["CreateContainer/unlabelled"]["p50"])
    result = running.load(lives=options.lives, labelled_every=1)
    figures.add("create_labelled_p50", side, result["latency_us"]["CreateContainer/labelled"]["p50"])


def measure_idle(figures: Figures, options: argparse.Namespace, binaries: Path) -> None:
    """Both at once: an idle process disturbs nobody."""
    with (
        plugin("ours", options.nri, binaries, 100) as ours,
        plugin("go", options.nri, binaries, 100) as go,
    ):
        for side in (ours, go):
            side.load(lives=100, labelled_every=10)
        time.sleep(SETTLE_S + 3)
        before = [cpu_of_tree(side.pid) for side in (ours, go)]
        time.sleep(options.idle_s)
        for side, start in zip((ours, go), before, strict=True):
            figures.add("idle_cpu_percent", side.side, (cpu_of_tree(side.pid) - start) / options.idle_s * 100)


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4)[::2] if len(values) > 1 else values * 2


def summary(figures: Figures, options: argparse.Namespace) -> Json:
    out: Json = {"nri_version": options.nri, "rounds": options.rounds, "turns": options.turns, "rate": options.rate}
    out |= {"cpus": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release(), "missed": []}
    for name, (unit, higher, limit) in RATIOS.items():
        ratios = figures.ratios(name)
        middle = statistics.median(ratios)
        suffix = f"_{unit}" if unit else ""
        out[f"{name}{suffix}"] = round(figures.median(name, "ours"), 1)
        out[f"{name}{suffix}_go"] = round(figures.median(name, "go"), 1)
        out[f"{name}_vs_go"] = round(middle, 3)
        out[f"{name}_vs_go_spread"] = [round(part, 3) for part in quartiles(ratios)]
        if middle < limit if higher else middle > limit:
            out["missed"].append(f"{name}_vs_go")
    for name in ALONE:
        out[name], out[f"{name}_go"] = (round(figures.alone(name, side), 4) for side in SIDES)
    if out["idle_cpu_percent"] >= 0.1:
        out["missed"].append("idle_cpu_percent")
    return out


def table(figures: Figures, out: Json) -> str:
    lines = [f"{'':26}{'ours':>12}{'Go':>12}{'ours/Go':>10}{'spread':>16}{'wanted':>10}"]
    for name, (unit, higher, limit) in RATIOS.items():
        low, high = out[f"{name}_vs_go_spread"]
        what, wanted = f"{name} {unit}", f"{'>=' if higher else '<='} {limit}"
        ours, go = figures.median(name, "ours"), figures.median(name, "go")
        spread = f"{low:.2f}..{high:.2f}"
        lines.append(f"{what:26}{ours:12.1f}{go:12.1f}{out[f'{name}_vs_go']:10.2f}{spread:>16}{wanted:>10}")
    lines += [f"{name:26}{out[name]:12.2f}{out[f'{name}_go']:12.2f}" for name in ALONE]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nri", default=CI_VERSIONS[-1], help="version of the runtime's library (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of fresh processes")
    parser.add_argument("--turns", type=int, default=10, help="a round, back to back")
    parser.add_argument("--paced-turns", type=int, default=4, help="a round, at --rate")
    parser.add_argument("--lives", type=int, default=80, help="pods a turn, seven events each")
    parser.add_argument("--labelled-every", type=int, default=10, help="one labelled pod in so many")
    parser.add_argument("--rate", type=float, default=500, help="events a second of the paced part")
    parser.add_argument("--idle-s", type=float, default=20)
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    binaries = build(options.nri)
    figures = Figures()
    for number in range(options.rounds):
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        for side in order:
            with plugin(side, options.nri, binaries, 6000) as running:
                measure_sync(figures, running)
        with plugin("ours", options.nri, binaries, 100) as ours, plugin("go", options.nri, binaries, 100) as go:
            measure_events(figures, (ours, go), options)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    measure_idle(figures, options, binaries)
    out = summary(figures, options)
    print(table(figures, out))
    print(json.dumps(out))
    return 1 if options.check and out["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
