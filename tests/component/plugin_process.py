"""A plugin process for the component tests: the daemon's NRI client, or a plugin on the stub, that tells what it hears.

    plugin_process.py '{"socket": "/run/x/nri.sock", …}'

One JSON object a line goes to stdout or to "output" (a launched plugin has no stdout). What it does beside listening is
asked for by a pod's annotations, so that a test says it where it sends the event:

    probe.example/want       any value: this pod concerns us; its containers get MARKER
    probe.example/create     "sleep:SECONDS" holds the loop, "raise", "bytes:N" a marker of that length
    probe.example/start      "sleep:SECONDS" waits without holding the loop, "raise"
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Sequence
from typing import Any

from nri_warmup.model.lifecycle import Container, EventKind, LifecycleEvent, Pod, Runtime, lookup
from nri_warmup.model.plan import Adjustment
from nri_warmup.nri.client import DEFAULT_EVENTS, NriClient
from nri_warmup.nri.identity import Identity
from nri_warmup.nri.stub import Backoff, Plugin, RuntimeInfo, serve

WANT, CREATE, START = "probe.example/want", "probe.example/create", "probe.example/start"
MARKER = "probe.example/marked"


class Teller:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1) if path else sys.stdout  # noqa: SIM115

    def __call__(self, **fields: Any) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


class Probe:
    """Implements ``nri.client.Handler``."""

    def __init__(self, tell: Teller, want: str = WANT) -> None:
        self.tell = tell
        self._interest = (frozenset({want.encode()}),)
        self._tracked: dict[str, str] = {}

    def interest(self) -> tuple[frozenset[bytes], ...]:
        return self._interest

    def is_tracked(self, container_id: str) -> bool:
        return container_id in self._tracked

    def is_tracked_pod(self, pod_id: str) -> bool:
        return pod_id in self._tracked.values()

    def on_config(self, text: str) -> None:
        self.tell(event="config", text=text)

    def on_connected(self, runtime: Runtime) -> None:
        self.tell(
            event="connected",
            name=runtime.name,
            version=runtime.version,
            nri=list(runtime.nri_version),
            timeout_s=runtime.request_timeout_s,
        )

    def on_disconnected(self, reason: str) -> None:
        self.tell(event="disconnected", reason=reason)

    def on_synchronize(self, containers: Sequence[tuple[Pod, Container]], totals: tuple[int, int]) -> None:
        for pod, container in containers:
            self._tracked[container.id] = pod.id
        found = [container.id for _, container in containers]
        self.tell(event="synchronize", found=found, pods=totals[0], containers=totals[1])

    def on_create(self, event: LifecycleEvent) -> Adjustment:
        assert event.container
        self._tell_event(event)
        self._tracked[event.container.id] = event.pod.id
        marker = "yes"
        what, _, amount = (lookup(event.pod.annotations, CREATE) or "").partition(":")
        if what == "sleep":
            time.sleep(float(amount))
        elif what == "raise":
            raise ValueError("asked to raise")
        elif what == "bytes":
            marker = "x" * int(amount)
        return Adjustment(annotations=((MARKER, marker),))

    def on_event(self, event: LifecycleEvent) -> Awaitable[None] | None:
        self._tell_event(event)
        if event.kind is EventKind.START_CONTAINER and event.container:
            self._tracked[event.container.id] = event.pod.id
        what, _, amount = (lookup(event.pod.annotations, START) or "").partition(":")
        if event.kind is EventKind.START_CONTAINER and what == "sleep":
            return asyncio.sleep(float(amount))
        if event.kind is EventKind.START_CONTAINER and what == "raise":
            raise ValueError("asked to raise")
        return None

    def on_failed(self, kind: EventKind) -> None:
        pass

    def on_skipped(self, kind: EventKind) -> None:
        self.tell(event="skipped", kind=kind.value)

    def _tell_event(self, event: LifecycleEvent) -> None:
        container = event.container
        self.tell(
            event=event.kind.value,
            pod=event.pod.id,
            container=container.id if container else None,
            pid=container.pid if container else 0,
            state=container.state.value if container else "",
        )


class Everything(Plugin):
    """A plugin on the stub that subscribes to all events that the runtime may know."""

    def __init__(self, tell: Teller) -> None:
        self.tell = tell

    def connected(self, runtime: RuntimeInfo) -> None:
        self.tell(event="connected", nri=list(runtime.nri_version))

    def synchronized(self) -> None:
        self.tell(event="synchronized")

    def disconnected(self, reason: str) -> None:
        self.tell(event="disconnected", reason=reason)

    def event_mask(self) -> int:
        return 0x1FFF  # all but ValidateContainerAdjustment, which would make this plugin able to refuse containers

    def raw_event(self, method: str, payload: bytes) -> bytes | None:
        self.tell(event="raw", method=method)
        return None


async def main(options: dict[str, Any]) -> None:
    tell = Teller(options.get("output", ""))
    tell(event="started", pid=os.getpid())
    inherited = os.environ.get("NRI_PLUGIN_SOCKET")
    fd = int(inherited) if inherited else None
    name, index, socket = options.get("name", "probe"), options.get("index", "90"), options.get("socket", "")
    if options.get("kind") == "stub":
        await serve(Everything(tell), Identity(name=name, index=index, launched_fd=fd), socket_path=socket)
    else:
        client = NriClient(
            Probe(tell, options.get("want", WANT)),
            socket_path=socket,
            name=name,
            index=index,
            launched_fd=fd,
            events=frozenset(EventKind) if options.get("all_events") else DEFAULT_EVENTS,
            margin_s=options.get("margin_s", 0.25),
            backoff=Backoff(),
        )
        await client.run()
    tell(event="ended")


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
