"""The self-test runs the real hook; what it says is looked at again at every decision."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from nri_warmup.daemon.hookhealth import HookHealth, interpreter
from nri_warmup.model.lifecycle import Runtime
from nri_warmup.model.node import NodeState

HOOK = Path(__file__).resolve().parents[3] / "hooks" / "nri-warmup-hook"

CONTAINERD = Runtime(name="containerd", nri_version=(0, 12))


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """A copy with an interpreter of its own, a link that a test can take away."""
    python = tmp_path / "python3"
    python.symlink_to("/usr/bin/python3")
    path = tmp_path / "hook"
    path.write_text(HOOK.read_text().replace("#!/usr/bin/python3", f"#!{python}", 1))
    path.chmod(0o755)
    return path


def checked(path: Path, tmp_path: Path) -> HookHealth:
    health = HookHealth(str(path), str(tmp_path / "control.sock"))
    asyncio.run(health.check())
    return health


def test_untested_is_unusable(hook: Path, tmp_path: Path) -> None:
    node = HookHealth(str(hook), str(tmp_path / "control.sock")).overlay(NodeState())
    assert not node.hook_usable and "not been tested" in node.hook_reason


def test_real_hook_passes(hook: Path, tmp_path: Path) -> None:
    node = checked(hook, tmp_path).overlay(NodeState())
    assert node.hook_usable and node.hook_reason == ""
    assert node.hook_path == str(hook)
    assert node.control_socket == str(tmp_path / "control.sock")


def test_missing_hook_and_missing_interpreter(hook: Path, tmp_path: Path) -> None:
    assert "not installed" in checked(tmp_path / "none", tmp_path).overlay(NodeState()).hook_reason
    (tmp_path / "python3").unlink()
    assert "interpreter" in checked(hook, tmp_path).overlay(NodeState()).hook_reason


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\nexit 3\n", "status 3, 0 expected"),
        ("#!/bin/sh\ncat >/dev/null; exit 0\n", "status 0, 1 expected"),
        ("#!/bin/sh\necho hello; exit 0\n", "hello"),
        ("#!/bin/sh\nno such program\n", "failed its self-test"),
    ],
)
def test_what_is_not_our_hook_fails_it(tmp_path: Path, script: str, says: str) -> None:
    path = tmp_path / "hook"
    path.write_text(script)
    path.chmod(0o755)
    assert says in checked(path, tmp_path).overlay(NodeState()).hook_reason


def test_not_executable(hook: Path, tmp_path: Path) -> None:
    hook.chmod(0o644)
    assert "cannot be run" in checked(hook, tmp_path).overlay(NodeState()).hook_reason


@pytest.mark.parametrize("name", ["hook", "python3"])
def test_gone_or_changed_after_the_test(hook: Path, tmp_path: Path, name: str) -> None:
    health = checked(hook, tmp_path)
    target = tmp_path / name
    kept = target.rename(tmp_path / "kept")
    assert not health.overlay(NodeState()).hook_usable
    asyncio.run(health.check())
    assert not health.overlay(NodeState()).hook_usable
    kept.rename(target)
    assert not health.overlay(NodeState()).hook_usable
    asyncio.run(health.check())
    assert health.overlay(NodeState()).hook_usable


def test_tested_once_while_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "hook"
    path.write_text(f'#!/bin/sh\necho x >>{tmp_path}/runs\nexec {HOOK} "$@"\n')
    path.chmod(0o755)
    health = checked(path, tmp_path)
    asyncio.run(health.check())
    assert (tmp_path / "runs").read_text() == "x\nx\n"
    os.utime(path)
    asyncio.run(health.check())
    assert (tmp_path / "runs").read_text() == "x\n" * 4


def test_veto_of_the_runtime_is_read_when_it_connects(hook: Path, tmp_path: Path) -> None:
    said = {"containerd": "hooks are rejected", "cri-o": ""}
    health = HookHealth(str(hook), str(tmp_path / "control.sock"), lambda runtime: said[runtime.name])
    asyncio.run(health.check())
    health.runtime_connected(CONTAINERD)
    assert health.overlay(NodeState()).hook_reason == "hooks are rejected"
    health.runtime_connected(Runtime(name="cri-o", nri_version=(0, 12)))
    assert health.overlay(NodeState()).hook_usable


def test_first_creation_undone_is_the_last_one_tried(hook: Path, tmp_path: Path) -> None:
    health = checked(hook, tmp_path)
    health.undone()
    assert "took back" in health.overlay(NodeState()).hook_reason
    health.runtime_connected(CONTAINERD)
    assert health.overlay(NodeState()).hook_usable


def test_once_hooks_have_worked_one_failed_creation_says_little(hook: Path, tmp_path: Path) -> None:
    health = checked(hook, tmp_path)
    health.created()
    for _ in range(2):
        health.undone()
    assert health.overlay(NodeState()).hook_usable
    health.created()
    for _ in range(3):
        health.undone()
    assert not health.overlay(NodeState()).hook_usable


def test_a_creation_undone_counts_for_some_minutes_only(hook: Path, tmp_path: Path) -> None:
    now = [0.0]
    health = HookHealth(str(hook), str(tmp_path / "control.sock"), clock=lambda: now[0])
    asyncio.run(health.check())
    health.undone()
    assert not health.overlay(NodeState()).hook_usable
    now[0] = 601.0
    assert health.overlay(NodeState()).hook_usable


def test_a_runtime_without_validators_cannot_refuse_a_hook(hook: Path, tmp_path: Path) -> None:
    health = checked(hook, tmp_path)
    health.runtime_connected(Runtime(name="containerd", nri_version=(0, 8)))
    for _ in range(5):
        health.undone()
    assert health.overlay(NodeState()).hook_usable


def test_interpreter_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for text, found in (("#!/usr/bin/python3 -IS\n", "/usr/bin/python3"), ("", ""), ("#!\n", ""), ("ELF", "")):
        path.write_text(text)
        assert interpreter(str(path)) == found
    assert interpreter(str(tmp_path / "none")) == ""
