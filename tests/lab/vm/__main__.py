"""``python -m tests.lab.vm WHAT``

test   tests/vm on the suite's own containerd
node   those under a real kubelet
ci     the one boot of CI: what is marked ci_guest of both
shell  for a person
image  only build it
"""

from __future__ import annotations

import argparse
import fcntl
import sys
from pathlib import Path

from tests.lab.store import cache_directory
from tests.lab.vm.guest import Boot, run, topologies
from tests.lab.vm.image import image, suites

NODE_TESTS = "tests/vm/node"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.vm", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("test", "node", "ci", "shell", "image"))
    parser.add_argument("--suite", choices=suites(), default="trixie")
    parser.add_argument("--topology", choices=tuple(topologies()), default="two-nodes")
    parser.add_argument("--driver", choices=("cgroupfs", "systemd"), default="systemd")
    parser.add_argument("--out", type=Path, default=None, help="results go here (default build/vm/WHAT-SUITE-DRIVER)")
    parser.add_argument("--seconds", type=int, default=1500, help="for the tests inside (default %(default)s)")
    parser.add_argument("--commit", default="", help="test this commit instead of the working tree")
    parser.epilog = "After --: further arguments of pytest inside; tests named there are run in place of WHAT's."
    words = [*sys.argv[1:], "--"]
    inside = words[words.index("--") + 1 : -1]
    options = parser.parse_args(words[: words.index("--")])
    home = cache_directory() / "vm"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build and one guest at a time: they take all the CPU there is
        wanted = image(options.suite)
        if options.what == "image":
            return 0
        tests: tuple[str, ...] = {
            "test": ("tests/vm", f"--ignore={NODE_TESTS}"),
            "node": (NODE_TESTS,),
            "ci": ("tests/vm", "-m", "ci_guest"),
        }.get(options.what, ())
        named = any(word.startswith("tests/") for word in inside)
        tests = tuple(inside) if named else (*tests, *inside)
        boot = Boot(
            image=wanted,
            topology=options.topology,
            driver=options.driver,
            tests=tests,
            seconds=options.seconds,
            node=options.what in ("node", "ci", "shell"),
            shell=options.what == "shell",
            commit=options.commit,
        )
        out = options.out or Path("build/vm") / f"{options.what}-{options.suite}-{options.driver}-{options.topology}"
        ended = run(boot, out)
    if options.what == "shell":
        return 0
    print(f"vm: {options.suite}, {options.driver}, {options.topology}: {ended.seconds:.0f} s in all; results in {out}")
    if ended.why:
        print(f"vm: {ended.why}", file=sys.stderr)
    return 1 if ended.code is None or ended.why else ended.code


if __name__ == "__main__":
    sys.exit(main())
