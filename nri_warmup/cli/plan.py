"""``nri-warmup plan``: what would be done for a container, and why. Nothing is asked of a runtime or a daemon.

The container is described by a pod's manifest as Kubernetes has it (``kubectl get pod -o yaml``; one plan for each of
its containers), by JSON or YAML with the fields of our own values, by options, or by options on top of either.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from nri_warmup.config import default_config
from nri_warmup.daemon import paths
from nri_warmup.daemon.configfile import parse_document, read_config
from nri_warmup.errors import ConfigError
from nri_warmup.model.lifecycle import Container, Mount, Pairs, Pod, Runtime, pairs
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import WarmupPlan
from nri_warmup.model.profile import Config
from nri_warmup.policy.decide import decide
from nri_warmup.policy.render import render_plan_json, render_plan_text

OK = 0
_NOT_ASKED = "plan asks no host; --hook PATH supposes that the hook there passed its self-test"
_SOURCES = "inline JSON, a file of JSON or YAML, or - for standard input"

__all__ = ["add_arguments", "add_parser", "render_plan_json", "render_plan_text", "run"]


def add_parser(subparsers: Any) -> None:
    add_arguments(subparsers.add_parser("plan", help="explain what would be done for a container, and why"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", default="", metavar="FILE", help=f"default {paths.CONFIG}, built-in without it")
    parser.add_argument("--pod", default="", metavar="POD", help=f"the pod, or a manifest of kind Pod: {_SOURCES}")
    parser.add_argument("--container", default="", metavar="CONTAINER", help=f"the container: {_SOURCES}")
    parser.add_argument("--label", action="append", default=[], metavar="K=V", help="label of the pod; repeatable")
    parser.add_argument("--annotation", action="append", default=[], metavar="K=V", help="of the pod; repeatable")
    parser.add_argument("--namespace", default=None, help="namespace of the pod (default: default)")
    parser.add_argument("--container-name", default=None, metavar="NAME", help="of a manifest's containers, only this")
    parser.add_argument("--image", default=None, help="image reference of the container")
    parser.add_argument(
        "--runtime-handler", default=None, metavar="H", help="runtime handler (runtime class) of the pod"
    )
    parser.add_argument("--mount", action="append", default=[], metavar="SRC:DST", help="a mount; repeatable")
    parser.add_argument(
        "--hook", default="", metavar="PATH", help="suppose a usable OCI hook there, as gate: hook needs"
    )
    parser.add_argument("--json", action="store_true", help="one JSON array of plans instead of text")


def run(args: argparse.Namespace) -> int:
    config = _config(args.config)
    node = NodeState(hook_usable=bool(args.hook), hook_path=args.hook, hook_reason=_NOT_ASKED)
    plans = [(pod, c, decide(pod, c, config, Runtime(), node, explain=True)) for pod, c in _described(args)]
    if args.json:
        print(json.dumps([_as_json(pod, container, plan) for pod, container, plan in plans], indent=2))
        return OK
    print(f"configuration: {config.source}")
    for pod, container, plan in plans:
        print(f"\ncontainer {_name(container.name)} of pod {_name(pod.namespace)}/{_name(pod.name)}")
        print(render_plan_text(plan), end="")
    return OK


def _config(path: str) -> Config:
    if path:
        return read_config(path)
    return read_config(paths.CONFIG) if Path(paths.CONFIG).exists() else default_config()


def _as_json(pod: Pod, container: Container, plan: WarmupPlan) -> dict[str, object]:
    head = {"namespace": pod.namespace, "pod": pod.name, "container": container.name}
    return {**head, **render_plan_json(plan)}


def _name(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text) or "?"


# --- descriptions -----------------------------------------------------------------------------------------------------


def _described(args: argparse.Namespace) -> list[tuple[Pod, Container]]:
    document = _document("--pod", args.pod) if args.pod else {}
    if document.get("kind") == "Pod":
        if args.container:
            _usage("--container", "a manifest of kind Pod already holds its containers; use --container-name")
        pod, containers = _manifest(document)
        if args.container_name is not None:
            known = ", ".join(c.name for c in containers)
            containers = [c for c in containers if c.name == args.container_name]
            if not containers:
                _usage("--container-name", f"the pod has no container {args.container_name!r}; it has {known}")
    else:
        pod = _pod(document)
        containers = [_container(_document("--container", args.container) if args.container else {})]
        if args.container_name is not None:
            containers = [replace(containers[0], name=args.container_name)]
    pod = replace(
        pod,
        labels=_merged("--label", pod.labels, args.label),
        annotations=_merged("--annotation", pod.annotations, args.annotation),
        namespace=pod.namespace if args.namespace is None else args.namespace,
        runtime_handler=pod.runtime_handler if args.runtime_handler is None else args.runtime_handler,
    )
    mounts = tuple(_mount_option(text) for text in args.mount)
    return [
        (pod, replace(c, image=c.image if args.image is None else args.image, mounts=c.mounts + mounts))
        for c in containers
    ]


def _document(option: str, text: str) -> dict[str, Any]:
    source = option
    if text == "-":
        text, source = sys.stdin.read(), f"{option} (standard input)"
    elif not text.lstrip().startswith("{"):
        source = text
        try:
            text = Path(text).read_text()
        except (OSError, UnicodeDecodeError) as error:
            _usage(option, str(error))
    value = parse_document(text, source=source)
    if not isinstance(value, dict):
        _usage(option, "not a map with a pod's or a container's fields")
    return value


def _pod(value: Mapping[str, Any]) -> Pod:
    fields = _Fields("--pod", value, ("id", "name", "namespace", "uid", "labels", "annotations", "runtime_handler"))
    return Pod(
        id=fields.text("id", "pod"),
        name=fields.text("name"),
        namespace=fields.text("namespace", "default"),
        uid=fields.text("uid"),
        labels=fields.map("labels"),
        annotations=fields.map("annotations"),
        runtime_handler=fields.text("runtime_handler"),
    )


def _container(value: Mapping[str, Any]) -> Container:
    fields = _Fields("--container", value, ("id", "name", "image", "labels", "annotations", "mounts"))
    return Container(
        id=fields.text("id", "container"),
        pod_id="pod",
        name=fields.text("name"),
        image=fields.text("image"),
        labels=fields.map("labels"),
        annotations=fields.map("annotations"),
        mounts=tuple(_mount(item) for item in fields.list("mounts")),
    )


def _mount(value: object) -> Mount:
    if not isinstance(value, Mapping):
        _usage("--container", "mounts: each is a map with destination, source and type")
    fields = _Fields("--container", value, ("destination", "source", "type", "options"))
    return Mount(destination=fields.text("destination"), source=fields.text("source"), type=fields.text("type", "bind"))


def _manifest(value: Mapping[str, Any]) -> tuple[Pod, list[Container]]:
    """What NRI would tell of a Kubernetes Pod, as far as its manifest says. A runtime class is taken for a handler."""
    metadata, spec = value.get("metadata"), value.get("spec")
    if not isinstance(metadata, Mapping) or not isinstance(spec, Mapping):
        _usage("--pod", "a manifest of kind Pod without metadata or spec")
    about = _Fields("--pod metadata", metadata)
    pod = Pod(
        id=about.text("uid") or "pod",
        name=about.text("name") or about.text("generateName"),
        namespace=about.text("namespace", "default"),
        uid=about.text("uid"),
        labels=about.map("labels"),
        annotations=about.map("annotations"),
        runtime_handler=_Fields("--pod spec", spec).text("runtimeClassName"),
    )
    containers = []
    for kind in ("initContainers", "containers"):
        for item in _Fields("--pod spec", spec).list(kind):
            if not isinstance(item, Mapping):
                _usage("--pod", f"spec.{kind}: each is a map")
            containers.append(_manifest_container(item))
    return pod, containers


def _manifest_container(value: Mapping[str, Any]) -> Container:
    fields = _Fields("--pod container", value)
    mounts = []
    for item in fields.list("volumeMounts"):
        mount = _Fields("--pod volumeMounts", item if isinstance(item, Mapping) else {})
        mounts.append(Mount(destination=mount.text("mountPath"), source=mount.text("name"), type="bind"))
    name = fields.text("name")
    return Container(id=name, pod_id="pod", name=name, image=fields.text("image"), mounts=tuple(mounts))


class _Fields:
    """Reads fields of given types; with ``known``, refuses others (a manifest has many that do not matter here)."""

    def __init__(self, place: str, value: Mapping[str, Any], known: tuple[str, ...] = ()) -> None:
        for key in value:
            if known and key not in known:
                _usage(place, f"unknown field {key!r}; known: {', '.join(known)}")
        self._place, self._value = place, value

    def text(self, key: str, default: str = "") -> str:
        value = self._value.get(key)
        if value is not None and not isinstance(value, str):
            _usage(self._place, f"{key} is not text")
        return value or default

    def map(self, key: str) -> Pairs:
        value = self._value.get(key)
        value = {} if value is None else value
        if not isinstance(value, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in value.items()
        ):
            _usage(self._place, f"{key} is not a map of text to text")
        return pairs(dict(value))

    def list(self, key: str) -> list[Any]:
        value = self._value.get(key)
        value = [] if value is None else value
        if not isinstance(value, list):
            _usage(self._place, f"{key} is not a list")
        return value


def _merged(option: str, items: Pairs, texts: list[str]) -> Pairs:
    found = dict(items)
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            _usage(option, f"{text!r} is not KEY=VALUE")
        found[key] = value
    return pairs(found)


def _mount_option(text: str) -> Mount:
    source, colon, destination = text.partition(":")
    if not colon or not destination.startswith("/"):
        _usage("--mount", f"{text!r} is not SOURCE:DESTINATION with an absolute destination")
    return Mount(destination=destination, source=source, type="bind")


def _usage(place: str, message: str) -> NoReturn:
    raise ConfigError(f"{place}: {message}")
