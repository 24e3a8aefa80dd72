"""The daemon, a bundle's directory on a real disk, and each runtime in turn."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.lab.cri import until
from tests.lab.plugin import PluginProcess
from tests.oci.bundle import RUNTIMES, Bundle

HOOK = Path(__file__).resolve().parents[2] / "hooks" / "nri-warmup-hook"
MIB = 1 << 20
CONFIG: dict[str, Any] = {
    "profiles": {
        "held": {"files": ["/models/**"], "gate": "hook", "reserve": "4Mi"},
        "beside": {"files": ["/models/**"], "gate": "none", "reserve": "4Mi"},
        "brief": {"files": ["/models/**"], "gate": "hook", "hold": "300ms", "reserve": "4Mi"},
        "watched": {"files": ["/models/**"], "mode": "observe", "reserve": "4Mi"},
        "strict": {"files": ["/models/**"], "gate": "hook", "on_error": "closed", "reserve": "4Mi"},
    }
}


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """On each runtime in turn."""
    return str(request.param)


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below /tmp, which may be a tmpfs; short, for a unix socket's path has at most 107 bytes."""
    if os.geteuid() != 0:
        pytest.skip("OCI runtimes need root")
    directory = Path(tempfile.mkdtemp(prefix="nriw-oci-", dir="/var/tmp"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def daemon(place: Path) -> Iterator[PluginProcess]:
    """Without a runtime that speaks NRI: all it hears of containers comes from the hook."""
    process = PluginProcess(place / "nri.sock", place / "d", CONFIG, arguments=[f"--hook={HOOK}"])
    process.start(wait=False)
    until("the control socket", lambda: answers(process), 30)
    yield process
    process.stop()
    left = process.left()
    assert not left, f"left behind: {left}"


def answers(process: PluginProcess) -> bool:
    assert process.alive(), process.log_tail()
    try:
        return bool(process.status())
    except OSError:
        return False


MakeBundle = Callable[..., Bundle]


@pytest.fixture
def make_bundle(place: Path) -> Iterator[MakeBundle]:
    with ExitStack() as stack:

        def make(runtime: str, *args: str, **options: Any) -> Bundle:
            return stack.enter_context(Bundle(runtime, place, args, **options))

        yield make


def hooked(bundle: Bundle, daemon: PluginProcess, models: Path, profile: str, *args: str) -> Bundle:
    bundle.mount(models, "/models", "ro")
    bundle.annotate(profile=profile)
    bundle.hook("createRuntime", HOOK, "--socket", str(daemon.control), "--deadline", "60", *args)
    return bundle
