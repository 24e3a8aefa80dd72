"""What can go wrong with the hook on a node: the container starts, the runtime returns on time, nobody is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab import leftovers, pages
from tests.lab.plugin import PluginProcess
from tests.lab.slowfs import SlowFs
from tests.oci.bundle import Bundle, Ended
from tests.oci.conftest import HOOK, MIB, MakeBundle, hooked

SAY = ("/probe", "say", "started")


def started(ended: Ended) -> None:
    assert (ended.code, ended.lines) == (0, ["say started"]), ended


def refused(ended: Ended, bundle: Bundle, says: str) -> None:
    """With --closed: not started, and one line of ours wherever the runtime shows what hooks say."""
    assert ended.code != 0 and ended.out == "", ended
    text = bundle.said.read_text() if bundle.runtime.startswith("crun") else ended.err
    assert text.count("nri-warmup: not started, on_error is closed: ") == 1 and says in text, text


def no_hook_left() -> None:
    assert [p for p in leftovers.processes() if str(HOOK) in p.command and " -IS " in p.command] == []


@contextlib.contextmanager
def listening(path: Path, backlog: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(backlog)
        yield listener


@contextlib.contextmanager
def absent(path: Path) -> Iterator[None]:
    yield


@contextlib.contextmanager
def hung(path: Path) -> Iterator[None]:
    """Connections are accepted by the kernel, nobody answers."""
    with listening(path, 64):
        yield


@contextlib.contextmanager
def full(path: Path) -> Iterator[None]:
    with listening(path, 0), contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(path))
        yield


FAULTS: list[tuple[Callable[[Path], contextlib.AbstractContextManager[None]], str]] = [
    (absent, "cannot be reached"),
    (hung, "no word from the daemon"),
    (full, "cannot be reached"),
]


@pytest.mark.parametrize(("fault", "says"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_daemon_fails(
    runtime: str,
    place: Path,
    make_bundle: MakeBundle,
    fault: Callable[[Path], contextlib.AbstractContextManager[None]],
    says: str,
) -> None:
    path = place / "control.sock"
    limits = ("--socket", str(path), "--deadline", "30", "--silence", "0.5")
    with fault(path):
        bundle = make_bundle(runtime, *SAY)
        bundle.hook("createRuntime", HOOK, *limits)
        ended = bundle.run()
        started(ended)
        assert ended.seconds < 8
        strict = make_bundle(runtime, *SAY)
        strict.hook("createRuntime", HOOK, *limits, "--closed")
        refused(strict.run(), strict, says)
    no_hook_left()


def test_deadline_reached(runtime: str, place: Path, make_bundle: MakeBundle) -> None:
    path = place / "control.sock"
    with hung(path):
        bundle = make_bundle(runtime, *SAY)
        bundle.hook("createRuntime", HOOK, "--socket", str(path), "--deadline", "0.7", "--silence", "60")
        ended = bundle.run()
        started(ended)
        assert 0.7 <= ended.seconds < 8


def test_killed_by_the_runtimes_timeout(runtime: str, place: Path, make_bundle: MakeBundle) -> None:
    """The last resort, which fails the container: runc kills the hook, then waits for its pipes to be let go."""
    path = place / "control.sock"
    with hung(path):
        bundle = make_bundle(runtime, *SAY)
        bundle.hook("createRuntime", HOOK, "--socket", str(path), "--deadline", "60", "--silence", "60", timeout_s=1)
        ended = bundle.run()
    assert ended.code != 0 and ended.out == "", ended
    assert 0.9 <= ended.seconds < 4
    no_hook_left()


def test_daemon_killed_while_it_holds(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    slow = SlowFs(place / "slow", 64 * MIB, 2 * MIB)
    try:
        bundle = hooked(make_bundle(runtime, *SAY), daemon, slow.directory, "held")
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(bundle.run)
            while not running.done() and not daemon.status()["jobs"]["running"]:
                time.sleep(0.02)
            assert not running.done()
            began = time.monotonic()
            daemon.kill()
            started(running.result(20))
            assert time.monotonic() - began < 5
        no_hook_left()
    finally:
        slow.close()


def test_daemon_stopped_while_it_holds(
    runtime: str, place: Path, daemon: PluginProcess, make_bundle: MakeBundle
) -> None:
    """It stands still, its socket open: silence tells."""
    model = pages.make_model(place / "m" / "model.bin", MIB)
    bundle = make_bundle(runtime, *SAY)
    bundle.mount(model.parent, "/models", "ro")
    bundle.annotate(profile="held")
    bundle.hook("createRuntime", HOOK, "--socket", str(daemon.control), "--deadline", "60", "--silence", "1")
    daemon.signal(signal.SIGSTOP)
    try:
        started(bundle.run())
    finally:
        daemon.signal(signal.SIGCONT)


def test_a_hundred_containers_at_once(place: Path, daemon: PluginProcess, make_bundle: MakeBundle) -> None:
    model = pages.make_model(place / "m" / "model.bin", MIB)
    bundles = []
    for _ in range(100):
        bundle = make_bundle("crun-bookworm", *SAY)
        bundle.mount(model.parent, "/models", "ro")
        bundle.annotate(profile="held")
        bundle.hook("createRuntime", HOOK, "--socket", str(daemon.control), "--deadline", "60", "--closed")
        bundles.append(bundle)
    with ThreadPoolExecutor(100) as threads:
        for ended in threads.map(Bundle.run, bundles):
            started(ended)
    assert daemon.metrics()['nri_warmup_gates_total{result="held"}'] == 100
    no_hook_left()
    assert os.path.exists(daemon.control)
