"""Which containers can see a wanted file, by their mounts alone."""

from __future__ import annotations

import pytest

from nri_warmup.model.lifecycle import Mount
from nri_warmup.policy.warmset import is_system_mount, sight


def bind(destination: str) -> Mount:
    return Mount(destination=destination, type="bind")


@pytest.mark.parametrize(
    ("pattern", "destination", "seen"),
    [
        ("/models/**", "/models", True),
        ("/models/**", "/models/", True),
        ("/models/**", "/models/llama", True),
        ("/models/llama/*.gguf", "/models", True),
        ("/models/llama/x.gguf", "/models/llama/x.gguf", True),
        ("/models/*/x", "/models/a", True),
        ("/models/*/x", "/models/a/x", True),
        ("/models/*/x", "/models/a/y", False),
        ("/models/*", "/models/a/b", False),
        ("/**/*.gguf", "/anything/at/all", True),
        ("/**", "/x", True),
        ("/mod[e]ls/**", "/models", True),
        ("/models/**", "/model", False),
        ("/models", "/models/x", False),
        ("/models/a", "/models/b", False),
        ("/a/**/b/**/c", "/a/x/b/y", True),
        ("/a/**/b/c", "/a/x/y", True),
        ("/etc/ssl/*", "/models", False),
    ],
)
def test_sight(pattern: str, destination: str, seen: bool) -> None:
    expected = (pattern, destination) if seen else None
    assert sight([pattern], [bind(destination)]) == expected


@pytest.mark.parametrize(
    "mount",
    [
        bind("/"),
        bind("/dev/shm"),
        bind("/proc/acpi"),
        bind("/etc/hosts"),
        bind("/var/run/secrets/kubernetes.io/serviceaccount"),
        Mount(destination="/models", type="tmpfs"),
        Mount(destination="/x", type="cgroup"),
    ],
)
def test_system_mounts_hold_no_model(mount: Mount) -> None:
    assert is_system_mount(mount)
    assert sight(["/**"], [mount]) is None


def test_first_mount_that_can() -> None:
    assert sight(["/a/*", "/b/*"], [bind("/proc"), bind("/c"), bind("/b"), bind("/a")]) == ("/b/*", "/b")
    assert not is_system_mount(bind("/device"))


def test_many_stars_cost_little() -> None:
    pattern = "/**/a" * 100
    assert sight([pattern], [bind("/" + "/".join("a" * 200))]) is not None
    assert sight([pattern], [bind("/" + "/".join("b" * 200))]) is not None
