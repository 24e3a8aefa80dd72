"""Repeated keys and features that a runtime does not have."""

from __future__ import annotations

from typing import Any

import pytest

from nri_warmup.nri import messages as m
from nri_warmup.nri.adjustment import (
    ADJUSTMENT_SINCE,
    dedupe_adjustment,
    dedupe_updates,
    review_adjustment,
)


def test_the_last_of_every_repeated_key_stays() -> None:
    adjust = m.ContainerAdjustment(
        env=[m.KeyValue(key="A", value="1"), m.KeyValue(key="B", value="1"), m.KeyValue(key="A", value="2")],
        mounts=[m.Mount(destination="/a", source="1"), m.Mount(destination="/a", source="2")],
        rlimits=[m.POSIXRlimit(type="RLIMIT_CORE", hard=1), m.POSIXRlimit(type="RLIMIT_CORE", hard=2)],
        CDI_devices=[m.CDIDevice(name="x"), m.CDIDevice(name="x")],
        linux=m.LinuxContainerAdjustment(
            devices=[m.LinuxDevice(path="/dev/a", major=1), m.LinuxDevice(path="/dev/a", major=2)],
            namespaces=[m.LinuxNamespace(type="ipc", path="1"), m.LinuxNamespace(type="ipc", path="2")],
            resources=m.LinuxResources(
                hugepage_limits=[m.HugepageLimit(page_size="2MB", limit=1), m.HugepageLimit(page_size="2MB", limit=2)]
            ),
        ),
    )
    dropped = dedupe_adjustment(adjust)
    assert len(dropped) == 7
    assert [(e.key, e.value) for e in adjust.env] == [("B", "1"), ("A", "2")]
    assert [mount.source for mount in adjust.mounts] == ["2"]
    assert [limit.hard for limit in adjust.rlimits] == [2]
    assert len(adjust.CDI_devices) == 1
    assert [device.major for device in adjust.linux.devices] == [2]
    assert [namespace.path for namespace in adjust.linux.namespaces] == ["2"]
    assert [limit.limit for limit in adjust.linux.resources.hugepage_limits] == [2]


def test_a_removal_and_its_new_value_are_two_keys() -> None:
    adjust = m.ContainerAdjustment(env=[m.KeyValue(key="-A"), m.KeyValue(key="A", value="2")])
    before = adjust.SerializeToString()
    assert dedupe_adjustment(adjust) == []
    assert adjust.SerializeToString() == before
    assert review_adjustment(adjust, (0, 12, 0)) == []


def test_hooks_accumulate_and_are_left_alone() -> None:
    hook = m.Hook(path="/bin/hook")
    adjust = m.ContainerAdjustment(hooks=m.Hooks(create_runtime=[hook, hook]))
    assert dedupe_adjustment(adjust) == [] and len(adjust.hooks.create_runtime) == 2


def test_nothing_is_added_to_an_empty_adjustment() -> None:
    adjust = m.ContainerAdjustment()
    dedupe_adjustment(adjust)
    review_adjustment(adjust, (0, 3, 0))
    assert adjust.SerializeToString() == b""


def test_one_update_a_container() -> None:
    updates = [m.ContainerUpdate(container_id="a"), m.ContainerUpdate(container_id="b")]
    updates.append(m.ContainerUpdate(container_id="a", ignore_failure=True))
    kept, dropped = dedupe_updates(updates)
    assert [(u.container_id, u.ignore_failure) for u in kept] == [("a", True), ("b", False)]
    assert dropped == ["update of a"]


EXAMPLES: dict[str, dict[str, Any]] = {
    "rlimits": {"rlimits": [{"type": "RLIMIT_CORE"}]},
    "CDI_devices": {"CDI_devices": [{"name": "x"}]},
    "args": {"args": ["x"]},
    "linux.oom_score_adj": {"linux": {"oom_score_adj": {"value": 0}}},
    "linux.resources.pids": {"linux": {"resources": {"pids": {"limit": 1}}}},
    "linux.resources.devices": {"linux": {"resources": {"devices": [{"allow": True}]}}},
    "linux.io_priority": {"linux": {"io_priority": {"priority": 1}}},
    "linux.seccomp_policy": {"linux": {"seccomp_policy": {"default_action": "x"}}},
    "linux.namespaces": {"linux": {"namespaces": [{"type": "ipc"}]}},
    "linux.sysctl": {"linux": {"sysctl": {"a": "b"}}},
    "linux.net_devices": {"linux": {"net_devices": {"eth0": {"name": "x"}}}},
    "linux.scheduler": {"linux": {"scheduler": {"nice": 1}}},
    "linux.rdt": {"linux": {"rdt": {"remove": True}}},
    "linux.memory_policy": {"linux": {"memory_policy": {"nodes": "0"}}},
}


@pytest.mark.parametrize(("path", "since"), ADJUSTMENT_SINCE)
def test_each_newer_field_is_told_once_and_only_to_older_runtimes(path: str, since: tuple[int, int, int]) -> None:
    from google.protobuf.json_format import ParseDict

    adjust = ParseDict(EXAMPLES[path], m.ContainerAdjustment())
    assert review_adjustment(adjust, since) == []
    (warning,) = review_adjustment(adjust, (since[0], since[1] - 1, 99))
    assert warning.startswith(path)


def test_every_field_of_the_message_is_old_or_in_the_table() -> None:
    """A field added to the protocol has to be given its version here."""
    always = {
        "annotations",
        "mounts",
        "env",
        "hooks",
        "linux",
        "linux.devices",
        "linux.resources",
        "linux.cgroups_path",
    }
    names = set(m.ContainerAdjustment.DESCRIPTOR.fields_by_name)
    names |= {f"linux.{name}" for name in m.LinuxContainerAdjustment.DESCRIPTOR.fields_by_name}
    assert names - always == {path for path, _ in ADJUSTMENT_SINCE if "resources" not in path}


@pytest.mark.parametrize(
    ("adjust", "version", "word"),
    [
        (m.ContainerAdjustment(env=[m.KeyValue(key="-A")]), (0, 12, 0), "empty value"),
        (m.ContainerAdjustment(mounts=[m.Mount(destination="-/a")]), (0, 6, 1), "mount /a"),
        (
            m.ContainerAdjustment(linux=m.LinuxContainerAdjustment(devices=[m.LinuxDevice(path="-/dev/a")])),
            (0, 12, 0),
            "device /dev/a",
        ),
        (
            m.ContainerAdjustment(
                linux=m.LinuxContainerAdjustment(
                    resources=m.LinuxResources(memory=m.LinuxMemory(reservation=m.OptionalInt64(value=1)))
                )
            ),
            (0, 12, 0),
            "reservation",
        ),
        (
            m.ContainerAdjustment(
                linux=m.LinuxContainerAdjustment(
                    resources=m.LinuxResources(memory=m.LinuxMemory(limit=m.OptionalInt64(value=0)))
                )
            ),
            (0, 12, 0),
            "limit of 0",
        ),
    ],
)
def test_what_has_no_effect_is_told(adjust: m.ContainerAdjustment, version: tuple[int, int, int], word: str) -> None:
    (warning,) = review_adjustment(adjust, version)
    assert word in warning


def test_a_mount_removal_works_from_0_7() -> None:
    assert review_adjustment(m.ContainerAdjustment(mounts=[m.Mount(destination="-/a")]), (0, 7, 0)) == []
