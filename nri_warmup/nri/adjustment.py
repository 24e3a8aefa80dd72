"""Makes a plugin's reply safe to send: repeated keys go, and what this runtime will not do is said.

A plugin that names a key twice conflicts with itself and the container fails. Fields that the runtime's NRI does not
know are dropped there without a word, and some removals have no effect in any version: both only earn a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from nri_warmup.nri.versions import Version

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nri_warmup.nri._pb.nri_pb2 import ContainerAdjustment, ContainerUpdate, LinuxResources

LOG = logging.getLogger("nri_warmup.nri")

M = TypeVar("M", bound="Message")


class _Repeated(Protocol[M]):
    """What protobuf's container of messages offers and this module uses."""

    def __iter__(self) -> Iterable[M]: ...
    def __len__(self) -> int: ...
    def __delitem__(self, index: slice) -> None: ...
    def extend(self, items: Iterable[M]) -> None: ...


# Field path -> first NRI version that acts on it.
ADJUSTMENT_SINCE: tuple[tuple[str, Version], ...] = (
    ("rlimits", (0, 4, 0)),
    ("CDI_devices", (0, 7, 0)),
    ("args", (0, 10, 0)),
    ("linux.oom_score_adj", (0, 7, 0)),
    ("linux.resources.pids", (0, 7, 0)),
    ("linux.resources.devices", (0, 10, 0)),
    ("linux.io_priority", (0, 10, 0)),
    ("linux.seccomp_policy", (0, 10, 0)),
    ("linux.namespaces", (0, 10, 0)),
    ("linux.sysctl", (0, 11, 0)),
    ("linux.net_devices", (0, 11, 0)),
    ("linux.scheduler", (0, 11, 0)),
    ("linux.rdt", (0, 11, 0)),
    ("linux.memory_policy", (0, 12, 0)),
)

_MEMORY_WITHOUT_EFFECT = (
    "reservation",
    "swap",
    "kernel",
    "kernel_tcp",
    "swappiness",
    "disable_oom_killer",
    "use_hierarchy",
)


def make_safe(adjust: ContainerAdjustment, version: Version) -> None:
    """Drop repeated keys from an adjustment, and log that and what a runtime of this version will not do."""
    report("adjustment", dedupe_adjustment(adjust), review_adjustment(adjust, version))


def report(what: str, dropped: list[str], warnings: list[str]) -> None:
    if dropped:
        LOG.warning("%s: only the last of repeated keys was kept: %s", what, ", ".join(dropped))
    for warning in warnings:
        LOG.warning("%s: %s", what, warning)


def dedupe_adjustment(adjust: ContainerAdjustment) -> list[str]:
    """Keep the last of every repeated key, in place. Returns what was dropped, for the log."""
    dropped: list[str] = []
    _keep_last(adjust.env, lambda item: item.key, "env", dropped)
    _keep_last(adjust.mounts, lambda item: item.destination, "mount", dropped)
    _keep_last(adjust.rlimits, lambda item: item.type, "rlimit", dropped)
    _keep_last(adjust.CDI_devices, lambda item: item.name, "CDI device", dropped)
    if adjust.HasField("linux"):
        _keep_last(adjust.linux.devices, lambda item: item.path, "device", dropped)
        _keep_last(adjust.linux.namespaces, lambda item: item.type, "namespace", dropped)
        if adjust.linux.HasField("resources"):
            _dedupe_resources(adjust.linux.resources, dropped)
    return dropped


def dedupe_updates(updates: Iterable[ContainerUpdate]) -> tuple[list[ContainerUpdate], list[str]]:
    """One update a container: the last, with its own keys made unique."""
    dropped: list[str] = []
    last: dict[str, ContainerUpdate] = {}
    for update in updates:
        if update.container_id in last:
            dropped.append(f"update of {update.container_id}")
        last[update.container_id] = update
        if update.linux.HasField("resources"):
            _dedupe_resources(update.linux.resources, dropped)
    return list(last.values()), dropped


def review_adjustment(adjust: ContainerAdjustment, version: Version) -> list[str]:
    """What of an adjustment will have no effect on an NRI of this version."""
    found = [
        f"{path} needs NRI {since[0]}.{since[1]}, the runtime has {version[0]}.{version[1]}: dropped there"
        for path, since in ADJUSTMENT_SINCE
        if version < since and _is_set(adjust, path)
    ]
    found += [
        f"removing environment variable {key} has no effect in any runtime; set it to an empty value"
        for key in _lone_removals(item.key for item in adjust.env)
    ]
    found += [
        f"removing device {path} has no effect in any runtime"
        for path in _lone_removals(item.path for item in adjust.linux.devices)
    ]
    if version < (0, 7, 0):
        found += [
            f"removing mount {path} has no effect before NRI 0.7"
            for path in _lone_removals(item.destination for item in adjust.mounts)
        ]
    memory = adjust.linux.resources.memory
    found += [
        f"linux.resources.memory.{name} is ignored when a container is created"
        for name in _MEMORY_WITHOUT_EFFECT
        if memory.HasField(name)
    ]
    if memory.HasField("limit") and memory.limit.value == 0:
        found.append("a memory limit of 0 is ignored when a container is created")
    return found


def _dedupe_resources(resources: LinuxResources, dropped: list[str]) -> None:
    _keep_last(resources.hugepage_limits, lambda item: item.page_size, "hugepage limit", dropped)


def _keep_last(items: _Repeated[M], key: Callable[[M], str], what: str, dropped: list[str]) -> None:
    if len(items) < 2:
        return
    last: dict[str, M] = {}
    for item in items:  # type: ignore[attr-defined]
        name = key(item)
        if last.pop(name, None) is not None:
            dropped.append(f"{what} {name}")
        last[name] = item
    if len(last) != len(items):
        kept = [type(item).FromString(item.SerializeToString()) for item in last.values()]
        del items[:]
        items.extend(kept)


def _lone_removals(keys: Iterable[str]) -> list[str]:
    seen = list(keys)
    return [key[1:] for key in seen if key.startswith("-") and key[1:] not in seen]


def _is_set(message: Message, path: str) -> bool:
    *parents, leaf = path.split(".")
    for name in parents:
        if not message.HasField(name):
            return False
        message = getattr(message, name)
    field = message.DESCRIPTOR.fields_by_name[leaf]
    return bool(len(getattr(message, leaf))) if field.is_repeated else message.HasField(leaf)
