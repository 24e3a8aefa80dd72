"""The example plugin of the documentation as an operator runs it: external, launched, and wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.nri import messages as m
from nri_warmup.nri.events import Event
from tests.component.fake_runtime import DEADLINE_S, FakeRuntime, Peer, make_container, make_pod

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/examples/10-model-env.py"
POD = make_pod("asking", {"model.example.com/path": "/srv/models/small"})
MASK = Event.CREATE_CONTAINER.bit | Event.START_CONTAINER.bit


def create(pod: m.PodSandbox) -> m.CreateContainerRequest:
    return m.CreateContainerRequest(pod=pod, container=make_container(pod))


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(tmp_path / "nri.sock") as fake:
        yield fake


def exercise(peer: Peer) -> None:
    assert peer.connect(version="2.1.9") == MASK
    adjust = m.CreateContainerResponse.FromString(peer.call("CreateContainer", create(POD))).adjust
    assert [(e.key, e.value) for e in adjust.env] == [("MODEL_PATH", "/models")]
    assert (adjust.mounts[0].source, adjust.mounts[0].destination) == ("/srv/models/small", "/models")
    assert peer.call("CreateContainer", create(make_pod("plain"))) == b""
    assert peer.state_change(Event.START_CONTAINER, POD, make_container(POD, pid=7)) == b""


def test_it_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60


def test_as_an_external_plugin(runtime: FakeRuntime) -> None:
    """Its identity is its file's name; it goes away on SIGTERM, with status 0."""
    command = [sys.executable, EXAMPLE, "--socket-path", runtime.path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            peer = runtime.accept()
            exercise(peer)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "default/asking/server gets /srv/models/small" in log and "server starts as process 7" in log


def test_its_name_is_its_files(runtime: FakeRuntime) -> None:
    with subprocess.Popen(
        [sys.executable, EXAMPLE, "--socket-path", runtime.path], stderr=subprocess.DEVNULL
    ) as process:
        try:
            registration = runtime.accept().accept_registration()
        finally:
            process.kill()
    assert (registration.plugin_idx, registration.plugin_name) == ("10", "model-env")


def test_as_a_launched_plugin(tmp_path: Path) -> None:
    """As a runtime starts one: three variables, descriptor 3, no stdio; it ends with the runtime."""
    ours, theirs = socket.socketpair()
    wrapper = tmp_path / "20-launched"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{EXAMPLE}"\n')
    wrapper.chmod(0o755)
    env = {"NRI_PLUGIN_NAME": "launched", "NRI_PLUGIN_IDX": "20", "NRI_PLUGIN_SOCKET": "3"}
    saved = os.dup(3) if _is_open(3) else None
    try:
        os.dup2(theirs.fileno(), 3)
        process = subprocess.Popen(
            [wrapper],
            env=env,
            pass_fds=(3,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    finally:
        os.dup2(saved, 3) if saved is not None else os.close(3)
        if saved is not None:
            os.close(saved)
        theirs.close()
    peer = Peer(ours)
    try:
        exercise(peer)
        peer.close()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("arguments", [["--index", "1"], ["--name", "a/b"], ["--config", "/nonexistent"]])
def test_what_cannot_work_is_said_at_once(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
