"""``nri-warmup demo``: a model server's first request, cold and warmed, interleaved, on this machine.

Each round evicts the model and makes sure that it is gone, starts a small real server, and asks it once. The warmed
arm waits for the warm-up first, and its total counts that too. Nothing here is estimated: faults are the server's own
rusage, coverage and owner are the kernel's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nri_warmup.cli import main as cli
from nri_warmup.errors import ConfigError, WarmupError
from nri_warmup.units import parse_size, render_size

SERVER = Path(__file__).with_name("demo_server.py")
_CONTAINERS = ("containerd", "runc", "crun")
_START_S = 60.0
_WARM_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runtime", default="auto", choices=("auto", *_CONTAINERS, "exec"), help="default %(default)s")
    parser.add_argument("--size", default="512Mi", metavar="SIZE", help="of the model file (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each arm, at least 1 (default %(default)s)")
    parser.add_argument("--dir", default="", help="where the model is made (default: /var/tmp); not a tmpfs")
    parser.add_argument("--json", action="store_true", help="only the JSON line")


class Arm(Protocol):
    """One running server. ``warm_outcome`` waits for the warm-up and gives what the plugin says of it."""

    def warm_outcome(self) -> dict[str, Any]: ...


class DemoRuntime(Protocol):
    name: str

    def serve(self, model: Path, address: Path, *, warm: bool) -> Any:
        """A context manager of an Arm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    first_request_ms: float
    total_ms: float
    major_faults: int
    minor_faults: int
    coverage: float | None = None
    owned: float | None = None
    large_folios: float | None = None


# -- the model file ------------------------------------------------------------------------------------------------


def make_model(path: Path, n_bytes: int) -> None:
    """Random bytes, on disk and not only in memory."""
    with path.open("wb", buffering=0) as stream:
        left = n_bytes
        while left > 0:
            piece = os.urandom(min(left, 8 << 20))
            stream.write(piece)
            left -= len(piece)
        os.fsync(stream.fileno())


def evict(path: Path) -> None:
    """Drop this one file from the page cache, and check that it is gone: nobody else's cache is touched."""
    from nri_warmup.kernel.pagecache import Mapping

    n_bytes = path.stat().st_size
    with path.open("rb", buffering=0) as stream:
        for _ in range(20):
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with Mapping(stream.fileno(), 0, n_bytes) as mapping:
                if not any(mapping.residency(0, n_bytes)):
                    return
            time.sleep(0.05)
    raise WarmupError(f"{path}: cannot be evicted from the page cache; is the directory on a tmpfs? Try --dir")


# -- without a container runtime -----------------------------------------------------------------------------------


class _ExecArm:
    def __init__(self, report: Path) -> None:
        self._report = report

    def warm_outcome(self) -> dict[str, Any]:
        wait_until(self._report.exists, _WARM_S, "the warm-up's report")
        outcome: dict[str, Any] = json.loads(self._report.read_text())
        return outcome


class ExecRuntime:
    """``nri-warmup exec`` itself: a cgroup and a mount namespace of its own, no containers."""

    name = "exec"

    @contextmanager
    def serve(self, model: Path, address: Path, *, warm: bool) -> Iterator[Arm]:
        report = address.with_suffix(".report")
        command = [sys.executable, "-m", "nri_warmup.cli.main", "exec", "--report", str(report)]
        if warm:
            command += ["--file", str(model)]
        command += ["--", sys.executable, "-I", "-S", str(SERVER), str(model), str(address)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            yield _ExecArm(report)
        finally:
            process.terminate()
            process.wait(20)
            report.unlink(missing_ok=True)


# -- one round -----------------------------------------------------------------------------------------------------


def wait_until(ask: Callable[[], bool], timeout_s: float, what: str) -> None:
    end = time.monotonic() + timeout_s
    while not ask():
        if time.monotonic() > end:
            raise WarmupError(f"{what}: not there after {timeout_s:g} s")
        time.sleep(0.002)


def ask(address: Path) -> tuple[float, int, int]:
    """One request: (milliseconds seen by the client, major faults, minor faults of the server)."""
    began = time.perf_counter()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_WARM_S)
        sock.connect(str(address))
        answer = sock.makefile("rb").readline()
    took_ms = (time.perf_counter() - began) * 1000
    fields = answer.split()
    if len(fields) != 4:
        raise WarmupError("the demo's server ended without an answer")
    return took_ms, int(fields[1]), int(fields[2])


def _ready(address: Path) -> Path:
    """Made by the server once it listens: /proc/net/unix shows no socket of another network namespace."""
    return Path(f"{address}.ready")


def listening(address: Path) -> bool:
    return _ready(address).exists()


def run_round(runtime: DemoRuntime, model: Path, address: Path, *, warm: bool) -> Round:
    for path in (address, _ready(address)):
        path.unlink(missing_ok=True)
    evict(model)
    began = time.perf_counter()
    with runtime.serve(model, address, warm=warm) as arm:
        wait_until(lambda: listening(address), _START_S, "the demo's server")
        outcome = arm.warm_outcome() if warm else {}
        first_ms, major, minor = ask(address)
        total_ms = (time.perf_counter() - began) * 1000
    if warm and outcome.get("state") != "done":
        raise WarmupError(f"the warm-up ended as {outcome.get('state')}: {outcome.get('reason')}")
    read_bytes, large = outcome.get("read_bytes"), outcome.get("large_folio_bytes")
    return Round(
        first_request_ms=first_ms,
        total_ms=total_ms,
        major_faults=major,
        minor_faults=minor,
        coverage=outcome.get("coverage"),
        owned=outcome.get("owned"),
        large_folios=large / read_bytes if large is not None and read_bytes else None,
    )


# -- the verb ------------------------------------------------------------------------------------------------------


def choose(name: str) -> DemoRuntime:
    """``auto`` takes the best that is there: pods of a real containerd, else a bare OCI runtime, else ``exec``."""
    problems = []
    for candidate in _CONTAINERS if name == "auto" else (name,):
        if candidate == "exec":
            break
        runtime = _with_containers(candidate)
        if not isinstance(runtime, str):
            return runtime
        problems.append(f"{candidate}: {runtime}")
    if name not in ("auto", "exec"):
        raise ConfigError(f"--runtime {problems[0]}")
    if problems:
        print(f"nri-warmup demo: without a container runtime ({'; '.join(problems)})", file=sys.stderr)
    return ExecRuntime()


def _with_containers(name: str) -> DemoRuntime | str:
    """A runtime, or why not. The lab that starts one of its own is in the source tree, not in the wheel."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "tests" / "lab" / "demo.py").exists():
        return "needs a source checkout; `make demo` sets it up"
    sys.path.insert(0, str(checkout))
    try:
        import importlib

        lab = importlib.import_module("tests.lab.demo")
        runtime: DemoRuntime = lab.ContainerdRuntime() if name == "containerd" else lab.OciRuntime(name)
        return runtime
    except Exception as error:
        return f"{error}; `make demo` sets it up"
    finally:
        sys.path.remove(str(checkout))


def run(args: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        print("nri-warmup demo: needs root, for cgroups and namespaces of its own", file=sys.stderr)
        return cli.UNSUPPORTED
    n_bytes = cli.value("--size", args.size, parse_size)
    if args.rounds < 1 or n_bytes < 1 << 20:
        raise ConfigError("--rounds must be at least 1 and --size at least 1Mi")
    directory = Path(tempfile.mkdtemp(prefix="nri-warmup-demo-", dir=args.dir or "/var/tmp"))
    try:
        return _measure(args, directory, n_bytes)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(args: argparse.Namespace, directory: Path, n_bytes: int) -> int:
    say: Callable[[str], None] = (lambda text: None) if args.json else (lambda text: print(text, flush=True))
    if shutil.disk_usage(directory).free < 2 * n_bytes:
        raise WarmupError(f"{directory}: less than {render_size(2 * n_bytes)} free; use --dir or a smaller --size")
    model = directory / "model.bin"
    say(f"making a model of {render_size(n_bytes)} in {directory}")
    make_model(model, n_bytes)
    arms: dict[bool, list[Round]] = {False: [], True: []}
    runtime = choose(args.runtime)
    with _opened(runtime):
        say(f"runtime: {runtime.name}; {args.rounds} rounds of each arm, interleaved, cache dropped and checked\n")
        say(
            f"{'round':>5} {'arm':>5} {'first request':>14} {'create to answer':>17} {'major':>7} {'minor':>7} coverage"
        )
        for number in range(args.rounds):
            for warm in (False, True) if number % 2 == 0 else (True, False):
                done = run_round(runtime, model, directory / "server.sock", warm=warm)
                arms[warm].append(done)
                say(_row(number + 1, done, warm=warm))
    result = summarize(runtime.name, n_bytes, arms[False], arms[True])
    say(_table(result))
    print(json.dumps(result))
    return cli.OK


@contextmanager
def _opened(runtime: DemoRuntime) -> Iterator[None]:
    close = getattr(runtime, "close", None)
    try:
        yield
    finally:
        if close is not None:
            close()


def _row(number: int, done: Round, *, warm: bool) -> str:
    coverage = "" if done.coverage is None else f"{done.coverage * 100:.1f} %"
    return (
        f"{number:5} {'warm' if warm else 'cold':>5} {done.first_request_ms:11.1f} ms {done.total_ms:14.1f} ms "
        f"{done.major_faults:7} {done.minor_faults:7} {coverage}"
    )


def summarize(runtime: str, n_bytes: int, cold: list[Round], warm: list[Round]) -> dict[str, Any]:
    """Medians of both arms. ``coverage`` and ``owned`` are the worst round's, not the median."""

    def median(rounds: list[Round], field: str) -> float:
        return round(float(statistics.median(getattr(r, field) for r in rounds)), 3)

    def worst(field: str) -> float | None:
        values = [getattr(r, field) for r in warm]
        return None if any(v is None for v in values) else round(min(values), 4)

    cold_ms, warm_ms = median(cold, "first_request_ms"), median(warm, "first_request_ms")
    return {
        "cold_first_request_ms": cold_ms,
        "warm_first_request_ms": warm_ms,
        "ratio": round(cold_ms / warm_ms, 2),
        "cold_total_ms": median(cold, "total_ms"),
        "warm_total_ms": median(warm, "total_ms"),
        "major_faults_cold": median(cold, "major_faults"),
        "major_faults_warm": median(warm, "major_faults"),
        "minor_faults_cold": median(cold, "minor_faults"),
        "minor_faults_warm": median(warm, "minor_faults"),
        "coverage": worst("coverage"),
        "owned": worst("owned"),
        "large_folios": worst("large_folios"),
        "runtime": runtime,
        "rounds": len(warm),
        "model_bytes": n_bytes,
        "cold_first_request_spread_ms": [min(r.first_request_ms for r in cold), max(r.first_request_ms for r in cold)],
        "warm_first_request_spread_ms": [min(r.first_request_ms for r in warm), max(r.first_request_ms for r in warm)],
    }


def _table(result: dict[str, Any]) -> str:
    rows = [
        ("first request, median", "first_request_ms", "ms"),
        ("create to first answer, median", "total_ms", "ms"),
    ]
    lines = ["", f"{'':32} {'cold':>12} {'warmed':>12}"]
    lines += [
        f"{text:32} {result['cold_' + key]:9.1f} {unit} {result['warm_' + key]:9.1f} {unit}" for text, key, unit in rows
    ]
    for text, key in (("major faults of it", "major_faults"), ("minor faults of it", "minor_faults")):
        lines.append(f"{text:32} {result[key + '_cold']:12.0f} {result[key + '_warm']:12.0f}")
    owned = "unknown (no memory cgroup)" if result["owned"] is None else f"{result['owned'] * 100:.1f} %"
    lines.append(
        f"first request {result['ratio']:.1f} times faster; coverage {result['coverage']}, charged to it {owned}\n"
    )
    return "\n".join(lines)
