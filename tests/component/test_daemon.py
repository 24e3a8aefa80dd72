"""The whole daemon against the runtime's own library, version by version."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.conftest import Lab
from tests.component.daemon_process import CONFIG, Daemon, daemon_command
from tests.go.harness import DEADLINE_S, GoRuntime, Json, container, pod

LABELLED = {"example.com/serves": "model"}
PLANNED = "planned.nri-warmup.dev"


def planned(reply: Json) -> str | None:
    return reply["adjust"].get("annotations", {}).get(PLANNED)


def server(of: Json, **fields: object) -> Json:
    """A container that sees the model's directory, which the profile wants."""
    return container(of, **{"pid": 0, **fields})


@pytest.fixture
def daemon(lab: Lab, runtime: GoRuntime) -> Iterator[Daemon]:
    daemon = Daemon(lab.directory / "daemon", lab.socket)
    try:
        daemon.wait_registered()
        runtime.wait_connected()
        yield daemon
    finally:
        daemon.close()


def entries(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in status["containers"]}


def test_a_labelled_container_is_marked_and_known_until_it_is_removed(runtime: GoRuntime, daemon: Daemon) -> None:
    one = pod("labelled", labels=LABELLED)
    assert planned(runtime.event("CreateContainer", one, server(one))) == "model"
    entry = entries(daemon.status())["labelled-server"]
    assert (entry["pod"], entry["container"], entry["profile"], entry["state"]) == (
        "labelled",
        "server",
        "model",
        "planned",
    )
    runtime.live(one, server(one), ("PostCreateContainer", "StartContainer", "StopContainer"))
    assert "labelled-server" in entries(daemon.status())
    runtime.event("RemoveContainer", one, server(one))
    assert "labelled-server" not in entries(daemon.status())


def test_an_unlabelled_container_is_left_alone(runtime: GoRuntime, daemon: Daemon) -> None:
    one = pod("plain", labels={"example.com/other": "model"})
    replies = runtime.live(one, server(one))
    assert planned(replies["CreateContainer"]) is None
    assert daemon.status()["containers"] == []
    if runtime.traces:
        assert {call["bytes"] for reply in replies.values() for call in reply["replies"]} == {0}


def test_an_annotation_picks_a_profile(runtime: GoRuntime, daemon: Daemon) -> None:
    one = pod("asks", annotations={"profile.nri-warmup.dev/container.server": "other"})
    assert planned(runtime.event("CreateContainer", one, server(one))) == "other"
    assert planned(runtime.event("CreateContainer", one, container(one, "sidecar"))) is None


def test_nonsense_in_an_annotation_starts_the_container(runtime: GoRuntime, daemon: Daemon) -> None:
    one = pod(
        "nonsense", labels=LABELLED, annotations={"max-bytes.nri-warmup.dev": "2 gigs", "fiels.nri-warmup.dev": "/x"}
    )
    assert planned(runtime.event("CreateContainer", one, server(one))) == "model"
    texts = [reason["text"] for reason in entries(daemon.status())["nonsense-server"]["reasons"]]
    assert any("2 gigs" in text for text in texts) and any("fiels" in text for text in texts)


def test_a_pid_that_is_gone_is_an_outcome(runtime: GoRuntime, daemon: Daemon) -> None:
    """The process that the runtime names may end at any time; the runtime never waits for our finding out."""
    child = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(child, 0)
    one = pod("gone", labels=LABELLED)
    runtime.event("CreateContainer", one, server(one))
    reply = runtime.event("StartContainer", one, server(one, pid=child))
    assert reply["us"] < 1_000_000
    status = daemon.wait_status("outcome", lambda status: entries(status)["gone-server"]["outcome"])
    assert entries(status)["gone-server"]["outcome"]["state"] == "container-gone"


def test_containers_that_ran_before_are_found(lab: Lab, runtime: GoRuntime) -> None:
    pods = [pod("early", labels=LABELLED), pod("plain")]
    gone = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(gone, 0)
    running = [server(each, pid=gone, state="CONTAINER_RUNNING") for each in pods]
    runtime.call("store", pods=pods, containers=running)
    daemon = Daemon(lab.directory / "daemon", lab.socket)
    try:
        daemon.wait_registered()
        status = daemon.wait_status("late container", lambda status: status["containers"])
        found = entries(status)
        assert list(found) == ["early-server"] and found["early-server"]["late"]
    finally:
        daemon.close()


def test_killed_and_started_again(lab: Lab, runtime: GoRuntime, daemon: Daemon) -> None:
    one, two, three = (pod(name, labels=LABELLED) for name in ("before", "while-away", "after"))
    assert planned(runtime.event("CreateContainer", one, server(one))) == "model"
    daemon.kill(signal.SIGKILL)
    assert planned(runtime.event("CreateContainer", two, server(two))) is None
    again = Daemon(daemon.directory, lab.socket)
    try:
        again.wait_registered()
        runtime.wait_connected(2)
        assert planned(runtime.event("CreateContainer", three, server(three))) == "model"
    finally:
        again.close()


def test_the_runtime_restarts(lab: Lab, runtime: GoRuntime, daemon: Daemon) -> None:
    runtime.close()
    daemon.wait_status("disconnect", lambda status: status["connection"]["state"] != "registered")
    again = lab.runtime()
    again.wait_connected()
    status = daemon.wait_registered()
    assert status["connection"]["disconnects"] == 1
    one = pod("after", labels=LABELLED)
    assert planned(again.event("CreateContainer", one, server(one))) == "model"


def test_a_changed_configuration_counts_from_the_next_container_on(runtime: GoRuntime, daemon: Daemon) -> None:
    one, two = (pod(name, labels={"example.com/serves": "new"}) for name in ("before", "after"))
    assert planned(runtime.event("CreateContainer", one, server(one))) is None
    path = daemon.directory / "config.yaml"
    path.write_text(CONFIG + "  - {profile: model, matchLabels: {example.com/serves: new}}\n")
    os.kill(daemon.pid, signal.SIGHUP)
    daemon.wait_status("new configuration", lambda status: status["config"]["selectors"] == 3)
    assert planned(runtime.event("CreateContainer", two, server(two))) == "model"


def test_stops_when_told_and_leaves_nothing(runtime: GoRuntime, daemon: Daemon) -> None:
    children = [int(pid) for pid in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()]
    assert children, "no zygote"
    handles = [os.pidfd_open(pid) for pid in children]
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait_exit() == 0
    for handle in handles:
        assert select.select([handle], [], [], DEADLINE_S)[0], "a child is left"
        os.close(handle)
    assert not (daemon.directory / "control.sock").exists()
    one = pod(labels=LABELLED)
    assert planned(runtime.event("CreateContainer", one, server(one))) is None


def test_launched_by_the_runtime(lab: Lab) -> None:
    """With its configuration from the runtime; it ends with the runtime."""
    plugins, config, directory = (lab.directory / name for name in ("plugins", "conf.d", "daemon"))
    for each in (plugins, config, directory):
        each.mkdir()
    (config / "nri-warmup.conf").write_text(CONFIG.replace("example.com/serves: model", "example.com/launched: model"))
    (directory / "config.yaml").write_text(CONFIG)
    command = " ".join(f"'{part}'" for part in daemon_command(directory))
    script = plugins / "90-nri-warmup"
    script.write_text(f"#!/bin/sh\necho $$ > '{directory}/pid'\nexec {command}\n")
    script.chmod(0o755)
    runtime = lab.runtime("-plugins", str(plugins), "-plugin-config", str(config), socket=False)
    one, two = (
        pod("launched", labels={"example.com/launched": "model"}),
        pod("plain", labels={"example.com/none": "model"}),
    )
    assert planned(runtime.event("CreateContainer", one, server(one))) == "model"
    assert planned(runtime.event("CreateContainer", two, server(two))) is None
    handle = os.pidfd_open(int((directory / "pid").read_text()))
    runtime.kill()
    assert select.select([handle], [], [], DEADLINE_S)[0], f"still there: {(directory / 'daemon.log').read_text()}"
    os.close(handle)


def test_six_thousand_containers(lab: Lab) -> None:
    """The reply is out before anything is looked at, and the labelled ones are found."""
    runtime = lab.runtime("-request-timeout", "20s")
    size = 3072 if lab.numbers >= (0, 7) else 1
    runtime.call("populate", count=6000, bytes=size, labelled_every=1000, labels=LABELLED)
    daemon = Daemon(lab.directory / "daemon", lab.socket)
    try:
        daemon.wait_registered()
        runtime.wait_connected()
        assert "error" not in runtime.state()["syncs"][-1]
        assert len(daemon.status()["containers"]) == 6
        one = pod(labels=LABELLED)
        assert planned(runtime.event("CreateContainer", one, server(one))) == "model"
    finally:
        daemon.close()


def test_a_start_event_without_a_create_before_it(runtime: GoRuntime, daemon: Daemon) -> None:
    one = pod("unknown", labels=LABELLED)
    runtime.event("StartContainer", one, server(one, pid=os.getpid()))
    status = daemon.wait_status("outcome", lambda status: entries(status)["unknown-server"]["outcome"])
    assert entries(status)["unknown-server"]["late"]
    runtime.live(one, server(one), ("StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"))
    assert entries(daemon.status()) == {}


def test_a_name_of_its_own_is_what_the_runtime_hears(lab: Lab, runtime: GoRuntime) -> None:
    daemon = Daemon(lab.directory / "daemon", lab.socket, "--name", "warm.two", "--index", "07")
    try:
        runtime.wait_log('registered as "07-warm.two"')
    finally:
        daemon.close()
