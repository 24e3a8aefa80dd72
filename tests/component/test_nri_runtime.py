"""The daemon's NRI client and the stub against the runtime's own library, version by version."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from pathlib import Path

import pytest

from tests.component.conftest import Lab
from tests.component.plugin_process import CREATE, MARKER, START, WANT
from tests.go.harness import DEADLINE_S, WHOLE_LIFE, GoRuntime, LineReader, RuntimeRefused, container, pod

WANTED = {WANT: "1"}
QUIET = {"RunPodSandbox", "PostStartContainer", "UpdateContainer", "PostUpdateContainer"}
"""Events that the daemon does not subscribe to."""


def marker(reply: dict) -> str | None:  # type: ignore[type-arg]
    return reply["adjust"].get("annotations", {}).get(MARKER)


def connected(lab: Lab, runtime: GoRuntime, **options: object):  # type: ignore[no-untyped-def]
    plugin = lab.probe(**options)
    plugin.wait_for(event="synchronize" if options.get("kind") != "stub" else "synchronized")
    runtime.wait_connected()
    return plugin


def no_complaint(runtime: GoRuntime) -> None:
    """The library has closed nobody and had no error."""
    bad = [line for line in runtime.state()["log"] if "closing plugin" in line or line.startswith("error")]
    assert [line for line in bad if "WASM" not in line] == []


# -- the handshake and the events --------------------------------------------------------------------------------------


def test_introduces_itself(lab: Lab) -> None:
    runtime = lab.runtime("-name", "containerd", "-version", "v1.7.24", "-request-timeout", "7s")
    told = lab.probe().wait_for(event="connected")
    assert (told["name"], told["version"]) == ("containerd", "v1.7.24")
    runtime.wait_log('registered as "90-probe"')
    if lab.numbers >= (0, 12):
        assert told["nri"] == list(lab.numbers[:2])  # sent by the runtime
    if lab.numbers >= (0, 7):
        assert told["timeout_s"] == 7.0
    else:
        assert told["nri"] == [0, 6]  # inferred: containerd 1.7.24 has it


def test_a_wanted_container_is_heard_of_through_its_life(lab: Lab, runtime: GoRuntime) -> None:
    plugin = connected(lab, runtime)
    one = pod("wanted", annotations=WANTED)
    replies = runtime.live(one, container(one, pid=4242, state="CONTAINER_CREATED"))
    assert marker(replies["CreateContainer"]) == "yes"
    assert set(replies["CreateContainer"]["adjust"]["annotations"]) == {MARKER}
    for kind in ("create", "post-create", "start", "stop", "remove"):
        told = plugin.wait_for(event=f"{kind}-container")
        assert (told["pod"], told["container"]) == (one["id"], "wanted-server")
        assert told["pid"] == (0 if kind in ("stop", "remove") else 4242), "a stale pid was handed out"
    for kind in ("stop", "remove"):
        assert plugin.wait_for(event=f"{kind}-pod-sandbox")["pod"] == one["id"]
    assert runtime.state()["unsolicited"] == []
    no_complaint(runtime)


def test_an_unwanted_container_gets_empty_replies_and_is_not_decoded(lab: Lab, runtime: GoRuntime) -> None:
    plugin = connected(lab, runtime)
    other = pod("other", annotations={"probe.example/unrelated": "1"})
    replies = runtime.live(other, container(other))
    assert marker(replies["CreateContainer"]) is None
    skipped = [plugin.wait_for(event="skipped")["kind"] for _ in range(len(WHOLE_LIFE) - len(QUIET))]
    assert skipped == [
        "create-container", "post-create-container", "start-container", "stop-container",
        "remove-container", "stop-pod-sandbox", "remove-pod-sandbox",
    ]  # fmt: skip
    if runtime.traces:
        for name, reply in replies.items():
            sizes = [call["bytes"] for call in reply["replies"]]
            assert sizes == ([] if name in QUIET else [0]), name
    no_complaint(runtime)


def test_events_come_in_the_form_of_the_version(lab: Lab, runtime: GoRuntime) -> None:
    """From 0.12 on by methods of their own, before as StateChange, and never the one after the other."""
    plugin = connected(lab, runtime, kind="stub")
    one = pod()
    runtime.live(one, container(one))
    own_form = {"CreateContainer", "UpdateContainer", "StopContainer"}
    for event in WHOLE_LIFE:
        method = event if lab.numbers >= (0, 12) or event in own_form else "StateChange"
        told = plugin.wait_for(event="raw")
        while told["method"] == "Synchronize":
            told = plugin.wait_for(event="raw")
        assert told["method"] == method, event
    no_complaint(runtime)


def test_every_event_can_be_had(lab: Lab, runtime: GoRuntime) -> None:
    plugin = connected(lab, runtime, all_events=True)
    one = pod("all", annotations=WANTED)
    runtime.live(one, container(one))
    kinds = [plugin.wait_for()["event"] for _ in WHOLE_LIFE]
    assert [kind.replace("-", "") for kind in kinds] == [event.lower() for event in WHOLE_LIFE]


def test_a_start_that_was_never_created_is_taken_as_it_comes(lab: Lab, runtime: GoRuntime) -> None:
    """Events around registration can be lost: a container first heard of at its start is as good as any."""
    plugin = connected(lab, runtime)
    late, other = pod("late", annotations=WANTED), pod("other")
    runtime.event("StartContainer", late, container(late, pid=77))
    assert plugin.wait_for(event="start-container")["pid"] == 77
    runtime.event("StopContainer", late, container(late, pid=77))
    plugin.wait_for(event="stop-container", container="late-server")
    for event in ("StartContainer", "StopContainer", "RemoveContainer", "StopPodSandbox"):
        runtime.event(event, other, container(other))
        plugin.wait_for(event="skipped")
    no_complaint(runtime)


def test_crio_order_and_its_stale_pids(lab: Lab) -> None:
    """CRI-O has the process at PostCreate, stops the pod before it removes its containers, and keeps telling the old
    pid.
    """
    runtime = lab.runtime("-name", "cri-o", "-version", "1.35.0")
    plugin = connected(lab, runtime)
    one = pod("crio", annotations=WANTED, pid=0)

    def send(event: str, pid: int, state: str) -> None:
        runtime.event(event, one, container(one, pid=pid, state=f"CONTAINER_{state}"))

    send("CreateContainer", 0, "UNKNOWN")
    send("PostCreateContainer", 4242, "CREATED")
    send("StartContainer", 4242, "CREATED")
    send("PostStartContainer", 4242, "CREATED")
    send("StopContainer", 4242, "STOPPED")
    runtime.event("StopPodSandbox", one)
    send("RemoveContainer", 4242, "STOPPED")
    runtime.event("RemovePodSandbox", one)
    told = [plugin.wait_for() for _ in range(7)]
    assert [(each["event"], each["pid"]) for each in told] == [
        ("create-container", 0), ("post-create-container", 4242), ("start-container", 4242), ("stop-container", 0),
        ("stop-pod-sandbox", 0), ("remove-container", 0), ("remove-pod-sandbox", 0),
    ]  # fmt: skip


# -- synchronize -------------------------------------------------------------------------------------------------------


def test_what_runs_already_is_found(lab: Lab, runtime: GoRuntime) -> None:
    pods = [pod("a"), pod("b", annotations=WANTED), pod("c")]
    runtime.call("store", pods=pods, containers=[container(each, pid=9) for each in pods])
    told = lab.probe().wait_for(event="synchronize")
    assert (told["found"], told["pods"], told["containers"]) == (["b-server"], 3, 3)
    runtime.wait_connected()
    runtime.event("StopContainer", pods[1], container(pods[1]))
    no_complaint(runtime)


def test_six_thousand_containers(lab: Lab) -> None:
    """Above 4 MiB the list comes in parts from 0.7 on; before, in one message of at most 16 MiB."""
    runtime = lab.runtime("-request-timeout", "20s")
    size = 3072 if lab.numbers >= (0, 7) else 1  # as small as they get: larger ones the library itself cannot send
    told_bytes = runtime.call("populate", count=6000, bytes=size, labelled_every=500, annotations=WANTED)["bytes"]
    assert told_bytes > 3 * 4194304 or lab.numbers < (0, 7)
    plugin = lab.probe()
    told = plugin.wait_for(event="synchronize")
    assert (told["pods"], told["containers"], len(told["found"])) == (6000, 6000, 12)
    runtime.wait_connected()
    one = pod(annotations=WANTED)
    assert marker(runtime.event("CreateContainer", one, container(one))) == "yes"
    no_complaint(runtime)


# -- launched by the runtime -------------------------------------------------------------------------------------------


def launched(lab: Lab) -> tuple[GoRuntime, LineReader, Path]:
    plugins, config, output = lab.directory / "plugins", lab.directory / "conf.d", lab.directory / "output"
    plugins.mkdir()
    config.mkdir()
    (config / "probe.conf").write_text("for any index\n")
    (config / "90-probe.conf").write_text("for ninety\n")
    os.mkfifo(output)
    command = " ".join(f"'{part}'" for part in lab.probe_command(output=str(output)))
    (plugins / "90-probe").write_text(f"#!/bin/sh\nexec {command}\n")
    (plugins / "90-probe").chmod(0o755)
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
    # A writer of our own keeps the pipe from ending before the plugin has opened it.
    os.open(output, os.O_WRONLY)
    runtime = lab.runtime("-plugins", str(plugins), "-plugin-config", str(config), socket=False)
    return runtime, LineReader(reader, "launched plugin"), output


def told(lines: LineReader, **wanted: object) -> dict:  # type: ignore[type-arg]
    while True:
        found = json.loads(lines.next())
        if all(found.get(key) == value for key, value in wanted.items()):
            return dict(found)


def test_launched_by_the_runtime(lab: Lab) -> None:
    runtime, lines, _ = launched(lab)
    pid = told(lines, event="started")["pid"]
    assert told(lines, event="config")["text"] == "for ninety\n"
    told(lines, event="connected")
    if lab.numbers >= (0, 7):
        told(lines, event="synchronize")
    one = pod("launched", annotations=WANTED)
    assert marker(runtime.event("CreateContainer", one, container(one))) == "yes"
    # Up to 0.6 nothing was synchronized before the first event.
    assert json.loads(lines.next())["event"] == "create-container"
    # A runtime that dies can kill nobody: the plugin has to see it.
    gone = os.pidfd_open(pid)
    runtime.kill()
    assert told(lines, event="ended")
    assert select.select([gone], [], [], DEADLINE_S)[0], "still there without its runtime"
    os.close(gone)


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_reconnects_when_the_runtime_is_back(lab: Lab, runtime: GoRuntime) -> None:
    plugin = connected(lab, runtime)
    runtime.close()
    plugin.wait_for(event="disconnected")
    again = lab.runtime()
    one = pod("survivor", annotations=WANTED)
    again.call("store", pods=[one], containers=[container(one, pid=5)])
    assert plugin.wait_for(event="synchronize")["containers"] in (0, 1)
    again.wait_connected()
    two = pod("after", annotations=WANTED)
    assert marker(again.event("CreateContainer", two, container(two))) == "yes"
    no_complaint(again)


def test_killed_inside_create(lab: Lab, runtime: GoRuntime) -> None:
    """The container starts without us, at once, and the next plugin is welcome."""
    plugin = connected(lab, runtime)
    stuck = pod("stuck", annotations={**WANTED, CREATE: "sleep:60"})
    ticket = runtime.send_event("CreateContainer", stuck, container(stuck))
    plugin.wait_for(event="create-container")
    plugin.kill(signal.SIGKILL)
    reply = runtime.receive(ticket)
    assert marker(reply) is None
    lab.probe().wait_for(event="synchronize")
    runtime.wait_connected(2)
    one = pod(annotations=WANTED)
    assert marker(runtime.event("CreateContainer", one, container(one))) == "yes"


@pytest.mark.parametrize("which", [CREATE, START])
def test_a_slow_handler_is_answered_for(lab: Lab, which: str) -> None:
    """A handler that holds the loop, and one that waits: the reply is there before the runtime's timer, and the plugin
    stays registered.
    """
    runtime = lab.runtime("-request-timeout", "3s")
    plugin = connected(lab, runtime, margin_s=1.0)
    slow = pod("slow", annotations={**WANTED, which: "sleep:3.5"})
    event = "CreateContainer" if which == CREATE else "StartContainer"
    reply = runtime.event(event, slow, container(slow))
    assert 900_000 < reply["us"] < 3_000_000
    if runtime.traces:
        assert [(call["bytes"], call.get("error")) for call in reply["replies"]] == [(0, None)]
    # The loop may be held for a little longer; what comes meanwhile waits for it.
    one = pod("next", annotations=WANTED)
    assert marker(runtime.event("CreateContainer", one, container(one))) == "yes"
    plugin.wait_for(event="create-container", container="next-server")
    no_complaint(runtime)


@pytest.mark.parametrize("which", [CREATE, START])
def test_a_failing_handler_fails_no_container(lab: Lab, runtime: GoRuntime, which: str) -> None:
    connected(lab, runtime)
    bad, good = pod("bad", annotations={**WANTED, which: "raise"}), pod("good", annotations=WANTED)
    reply = runtime.event("CreateContainer", bad, container(bad))
    assert marker(reply) == (None if which == CREATE else "yes")
    runtime.event("StartContainer", bad, container(bad))
    assert marker(runtime.event("CreateContainer", good, container(good))) == "yes"
    no_complaint(runtime)


@pytest.mark.parametrize("size", [4_000, 4_096, 100_000, 3_900_000])
def test_large_replies_arrive(lab: Lab, runtime: GoRuntime, size: int) -> None:
    """Go's reader takes the first frame of a message into 4096 bytes; a reply that is cut wrongly loses the plugin."""
    connected(lab, runtime)
    one = pod("large", annotations={**WANTED, CREATE: f"bytes:{size}"})
    assert len(marker(runtime.event("CreateContainer", one, container(one))) or "") == size
    assert marker(runtime.event("CreateContainer", pod("b", annotations=WANTED), container(one))) == "yes"
    no_complaint(runtime)


def test_a_reply_above_the_limit_is_not_sent(lab: Lab, runtime: GoRuntime) -> None:
    """It would close the connection; and an error would fail the container."""
    connected(lab, runtime)
    one = pod("huge", annotations={**WANTED, CREATE: "bytes:5000000"})
    assert marker(runtime.event("CreateContainer", one, container(one))) is None
    two = pod("next", annotations=WANTED)
    assert marker(runtime.event("CreateContainer", two, container(two))) == "yes"
    no_complaint(runtime)


def test_a_large_container_is_heard_of(lab: Lab, runtime: GoRuntime) -> None:
    connected(lab, runtime)
    one = pod("large", annotations=WANTED)
    big = container(one, env=["X=" + "x" * 3_900_000])
    assert marker(runtime.event("CreateContainer", one, big)) == "yes"
    no_complaint(runtime)


def test_steps_down_where_the_runtime_knows_fewer_events(lab: Lab) -> None:
    """A runtime that names itself newer than its library closes a plugin for bits that it does not know."""
    runtime = lab.runtime("-version", "v2.2.1")
    plugin = lab.probe(kind="stub")
    if (0, 7) <= lab.numbers < (0, 10):
        plugin.wait_for(event="connected")
        plugin.wait_for(event="disconnected")
        assert any("invalid plugin events" in line for line in runtime.state()["log"])
    plugin.wait_for(event="synchronized")
    runtime.wait_connected()
    one = pod()
    runtime.event("StartContainer", one, container(one))
    plugin.wait_for(event="raw", method="StartContainer" if lab.numbers >= (0, 12) else "StateChange")


def test_two_plugins(lab: Lab, runtime: GoRuntime) -> None:
    """What both set merges; where both set the same, the runtime fails that container and keeps both."""
    connected(lab, runtime)
    lab.go_plugin(runtime, "-idx", "50", "-answer", "reference.example/answer")
    runtime.wait_connected(2)
    ask = {"reference.example/ask": "42"}
    both = pod("both", annotations={**WANTED, **ask})
    reply = runtime.event("CreateContainer", both, container(both))
    assert reply["adjust"]["annotations"] == {MARKER: "yes", "reference.example/answer": "42"}
    lab.go_plugin(runtime, "-idx", "40", "-name", "rival", "-answer", MARKER, "-ask", "rival.example/ask")
    runtime.wait_connected(3)
    fought = pod("fought", annotations={**WANTED, "rival.example/ask": "mine"})
    with pytest.raises(RuntimeRefused, match=r"90-probe.*40-rival|40-rival.*90-probe"):
        runtime.event("CreateContainer", fought, container(fought))
    again = pod("again", annotations={**WANTED, **ask})
    reply = runtime.event("CreateContainer", again, container(again))
    assert reply["adjust"]["annotations"] == {MARKER: "yes", "reference.example/answer": "42"}


def test_waits_behind_a_silent_client(lab: Lab) -> None:
    """The runtime registers one plugin after another: a silent one delays us, and must not make us give up."""
    runtime = lab.runtime("-registration-timeout", "1500ms")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(lab.socket))
        plugin = lab.probe()
        plugin.wait_for(event="synchronize")
        runtime.wait_connected()
        log = runtime.state()["log"]
    assert any("registration timed out" in line for line in log)
    one = pod(annotations=WANTED)
    assert marker(runtime.event("CreateContainer", one, container(one))) == "yes"
