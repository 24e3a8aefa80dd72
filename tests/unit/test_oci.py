"""States as runtimes really wrote them, and states that nobody should write: an event, or a named protocol error.

``oci_states.json`` was recorded by a createRuntime hook that saved its stdin, with one bundle under each runtime; ids,
process ids and the bundle's path were replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.model.lifecycle import ContainerState, EventKind, Mount, Pod, lookup
from nri_warmup.oci import OciState, event, parse_state, rootfs_path
from nri_warmup.request import parse_request

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("oci_states.json").read_text())
SPEC: dict[str, Any] = RECORDED["config.json"]
STATES: dict[str, Any] = RECORDED["states"]


@pytest.mark.parametrize("runtime", STATES)
def test_recorded_state(runtime: str) -> None:
    state = parse_state(STATES[runtime])
    assert state.pid == 4242
    assert state.bundle == "/run/bundle"
    assert rootfs_path(state, SPEC) == "/run/bundle/rootfs"
    found = event(state, SPEC)
    container = found.container
    assert container is not None
    assert found.kind is EventKind.CREATE_RUNTIME
    assert container.id == STATES[runtime]["id"] == found.pod.id == container.pod_id
    assert container.state is ContainerState.CREATED
    assert container.pid == 4242
    assert container.args == ("/bin/busybox", "true")
    assert container.cgroups_path == "/warmup-test/x1"
    assert container.memory_limit_bytes == 256 << 20
    assert Mount(destination="/models", source="/tmp", type="bind", options=("rbind", "ro")) in container.mounts
    assert ("mount", "") in container.namespaces
    assert parse_request(found.pod, container).profile == "model"


def test_without_a_spec_the_state_s_annotations_are_known() -> None:
    container = event(parse_state(STATES["runc 1.3.6"])).container
    assert container is not None
    assert lookup(container.annotations, "profile.nri-warmup.dev") == "model"
    assert (container.mounts, container.args, container.memory_limit_bytes) == ((), (), None)


def test_crun_names_the_rootfs_where_the_bundle_is_broken() -> None:
    state = parse_state({**STATES["crun 1.28"], "bundle": "/", "root": "/var/lib/x/merged"})
    assert state.bundle == ""
    assert rootfs_path(state, None) == "/var/lib/x/merged"
    assert rootfs_path(parse_state({"id": "c", "bundle": "/", "root": "rootfs"})) == ""
    assert rootfs_path(parse_state({"id": "c", "bundle": "/b/", "root": "rootfs"})) == "/b/rootfs"
    assert rootfs_path(parse_state({"id": "c"}), SPEC) == ""


@pytest.mark.parametrize("pid", [None, 0, 1, -3, True, "4242", 4242.0])
def test_a_pid_that_is_not_of_the_host(pid: object) -> None:
    assert parse_state({"id": "c", "pid": pid}).pid == 0


def test_containerd_s_names() -> None:
    annotations = {
        "io.kubernetes.cri.container-name": "server",
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.image-name": "localhost/llm:1",
        "io.kubernetes.cri.sandbox-id": "pod1",
        "io.kubernetes.cri.sandbox-name": "llm-0",
        "io.kubernetes.cri.sandbox-namespace": "prod",
        "io.kubernetes.cri.sandbox-uid": "u-1",
    }
    found = event(parse_state({"id": "c", "annotations": annotations}))
    assert found.container is not None
    assert found.pod == Pod(id="pod1", name="llm-0", namespace="prod", uid="u-1")
    assert (found.container.name, found.container.image) == ("server", "localhost/llm:1")


def test_crio_s_names() -> None:
    annotations = {
        "io.kubernetes.container.name": "server",
        "io.kubernetes.cri-o.ImageName": "quay.io/llm:1",
        "io.kubernetes.cri-o.Labels": '{"io.kubernetes.pod.uid":"u-1"}',
        "io.kubernetes.cri-o.RuntimeHandler": "kata",
        "io.kubernetes.cri-o.SandboxID": "pod1",
        "io.kubernetes.pod.name": "llm-0",
        "io.kubernetes.pod.namespace": "prod",
        "io.kubernetes.pod.uid": "u-1",
    }
    found = event(parse_state({"id": "c"}), {"annotations": annotations})
    assert found.container is not None
    assert found.pod == Pod(id="pod1", name="llm-0", namespace="prod", uid="u-1", runtime_handler="kata")
    assert found.container.labels == (("io.kubernetes.pod.uid", "u-1"),)
    assert (found.container.name, found.container.image) == ("server", "quay.io/llm:1")


@pytest.mark.parametrize("value", [None, [], "x", {}, {"id": ""}, {"id": 7}, {"id": "../x"}, {"id": "a\0b"}])
def test_not_a_state(value: object) -> None:
    with pytest.raises(RemoteProtocolError, match="the runtime's state"):
        parse_state(value)


def test_values_of_the_wrong_shape_are_unknown() -> None:
    state = parse_state({"id": "c", "bundle": 7, "root": [], "annotations": {"a": 1, "b": "c"}})
    assert state == OciState(id="c", annotations=(("b", "c"),))
    spec = {
        "mounts": [7, {}, {"destination": "/a", "options": ["ro", 1]}, {"destination": "/b\0"}],
        "process": {"args": "x", "env": [1, "A=b"]},
        "linux": {"namespaces": [{"type": "mount"}, {"path": "/x"}, None], "resources": []},
        "annotations": [],
    }
    container = event(state, spec).container
    assert container is not None
    assert container.mounts == (Mount(destination="/a", options=("ro",)),)
    assert (container.args, container.env, container.namespaces) == ((), ("A=b",), (("mount", ""),))


def test_broken_label_json_is_left_out() -> None:
    for text in ("{", "7", '{"a": 1}', "[" * 100_000):
        container = event(parse_state({"id": "c", "annotations": {"io.kubernetes.cri-o.Labels": text}})).container
        assert container is not None
        assert container.labels == ()
