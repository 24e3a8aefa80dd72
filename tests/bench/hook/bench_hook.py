"""What the OCI hook costs: its own run against a bare interpreter's, and a container's start with it and without.

    python tests/bench/hook/bench_hook.py [--runs N]     one JSON line on stdout, milliseconds, medians

``hook_idle_vs_bare_python``: the hook with a state on stdin and nothing to wait for (no daemon; ``hook_answered``: one
that lets go at once), over ``python3 -IS`` that reads stdin to its end and exits. By hyperfine, which takes the shell's
own time off, in rounds of all commands so that a busy machine slows them alike. ``added_ms``: create + start of a bare
bundle with the hook in it, above the same without, by turns; ``added_over_python_ms`` takes the bare interpreter's run
off that.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.oci.bundle import RUNTIMES, Bundle
from tests.oci.conftest import HOOK

STATE = {
    "ociVersion": "1.0.2",
    "id": "bench",
    "status": "creating",
    "pid": 4242,
    "bundle": "/run/bench",
    "annotations": {},
}
BARE = "import posix\nwhile posix.read(0, 65536): pass\nposix._exit(0)"
ROUNDS = 5


def serve(path: Path) -> None:
    """A daemon that lets every hook go at once."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)

    def answer() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b'{"v":1,"done":true,"exit":0}\n')

    threading.Thread(target=answer, daemon=True).start()


def hyperfine(commands: dict[str, list[str]], state: Path, runs: int) -> dict[str, float]:
    """Name -> median milliseconds over all rounds."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            with tempfile.NamedTemporaryFile(suffix=".json") as out:
                quoted = f"{shlex.join(command)} <{state}"
                options = ["-S", "sh", "--style", "none", "--warmup", "2", "--runs", str(max(2, runs // ROUNDS))]
                subprocess.run(
                    ["hyperfine", *options, "--export-json", out.name, quoted],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                times[name] += json.loads(Path(out.name).read_text())["results"][0]["times"]
    return {name: statistics.median(values) * 1e3 for name, values in times.items()}


def start_ms(runtime: str, place: Path, prepare: Callable[[Bundle], None]) -> float:
    with Bundle(runtime, place, ["/probe", "say", "x"]) as bundle:
        prepare(bundle)
        began = time.monotonic()
        ended = bundle.run()
        took = time.monotonic() - began
        assert ended.lines == ["say x"], ended
    return took * 1e3


def container_starts(place: Path, answered: Path, runs: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for runtime in RUNTIMES:
        without: list[float] = []
        added: list[float] = []
        for _ in range(runs):
            bare = start_ms(runtime, place, lambda bundle: None)
            hooked = start_ms(
                runtime, place, lambda bundle: bundle.hook("createRuntime", HOOK, "--socket", str(answered), "--closed")
            )
            without.append(bare)
            added.append(hooked - bare)
        found[runtime] = {
            "without_ms": round(statistics.median(without), 1),
            "added_ms": round(statistics.median(added), 1),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    runs = parser.parse_args().runs
    place = Path(tempfile.mkdtemp(prefix="nriw-bench-", dir="/var/tmp"))
    try:
        answered = place / "control.sock"
        serve(answered)
        state = place / "state.json"
        state.write_text(json.dumps(STATE))
        python = HOOK.read_text().split()[0][2:]
        medians = hyperfine(
            {
                "bare_python": [python, "-IS", "-c", BARE],
                "hook_idle": [str(HOOK), "--socket", str(place / "none.sock")],
                "hook_answered": [str(HOOK), "--socket", str(answered), "--closed"],
                "true": ["/bin/true"],
            },
            state,
            runs,
        )
        starts = container_starts(place, answered, max(5, runs // 3))
    finally:
        shutil.rmtree(place)
    bare = medians["bare_python"]
    for figures in starts.values():
        figures["added_over_python_ms"] = round(figures["added_ms"] - bare, 1)
    result = {
        "bench": "hook",
        "hook_idle_vs_bare_python": round(medians["hook_idle"] / bare, 3),
        "hook_answered_vs_bare_python": round(medians["hook_answered"] / bare, 3),
        **{f"{name}_ms": round(value, 2) for name, value in medians.items()},
        "container_start": starts,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
