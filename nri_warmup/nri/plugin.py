"""The base class of a plugin: one method for each event, to be overridden.

A plugin is subscribed to the events whose methods it overrides, and to no others. Methods may be plain or ``async``.
They get the protocol's messages (``nri_warmup.nri.messages``) and have to answer soon: the runtime starts nothing
else meanwhile, and closes a plugin that takes longer than its request timeout (2 s unless configured otherwise). The
stub answers for a method that is late, or that raises: with nothing to change, or, for the events in ``fail_closed``,
with an error that makes the runtime's operation fail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from nri_warmup.nri.events import Event, mask_of
from nri_warmup.nri.versions import RuntimeInfo

if TYPE_CHECKING:
    from nri_warmup.nri._pb.nri_pb2 import (
        Container,
        ContainerAdjustment,
        ContainerUpdate,
        LinuxResources,
        PodSandbox,
        ValidateContainerAdjustmentRequest,
    )

T = TypeVar("T")
Reply: TypeAlias = "T | Awaitable[T]"
"""What a handler returns, at once or as a coroutine."""


class Plugin:
    """Override what you need. ``name`` and ``index`` are the identity used where no flag or environment gives one."""

    name: str = ""
    index: str = ""
    fail_closed: frozenset[Event] = frozenset()
    """Events whose operation shall fail if the handler raises or is late; the others go on without the plugin."""
    runtime_pid: int = 0
    """The runtime's process, by SO_PEERCRED, once connected; 0 where it is not in our pid namespace."""

    # -- the connection --------------------------------------------------------------------------------------------

    def configure(self, config: str, runtime: RuntimeInfo) -> None:
        """The runtime introduces itself. ``config`` is the drop-in's text for a launched plugin, else the operator's
        file.
        """

    def connected(self, runtime: RuntimeInfo) -> None:
        """Configured: events follow. Comes again after every reconnect."""

    def disconnected(self, reason: str) -> None:
        """The connection is gone. What happens until the next ``synchronize`` is never told."""

    def synchronized(self) -> None:
        """The reply to ``synchronize`` is on its way and no event has come since: the place for heavier work."""

    def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> Reply[Sequence[ContainerUpdate] | None]:
        """Everything that exists. May name containers that events bring again, and miss some: be idempotent.

        Do heavy work after returning. Not sent to launched plugins by NRI up to 0.6.1.
        """
        return None

    # -- pods ------------------------------------------------------------------------------------------------------

    def run_pod_sandbox(self, pod: PodSandbox) -> Reply[None]:
        """The pod's sandbox runs, no container yet. Raising with ``fail_closed`` makes the pod fail."""
        return None

    def update_pod_sandbox(self, pod: PodSandbox, overhead: LinuxResources, resources: LinuxResources) -> Reply[None]:
        """The pod is resized in place (NRI 0.10). Nothing can be changed, raising with ``fail_closed`` refuses it."""
        return None

    def post_update_pod_sandbox(self, pod: PodSandbox) -> Reply[None]:
        return None

    def stop_pod_sandbox(self, pod: PodSandbox) -> Reply[None]:
        return None

    def remove_pod_sandbox(self, pod: PodSandbox) -> Reply[None]:
        return None

    # -- containers ------------------------------------------------------------------------------------------------

    def create_container(
        self, pod: PodSandbox, container: Container
    ) -> Reply[ContainerAdjustment | tuple[ContainerAdjustment, Sequence[ContainerUpdate]] | None]:
        """A container is about to be made: return what to change in it, alone or with updates of *other* containers.

        Only one plugin may set a field or key; repeated keys within one adjustment are dropped by the stub, the last
        wins.
        """
        return None

    def post_create_container(self, pod: PodSandbox, container: Container) -> Reply[None]:
        return None

    def start_container(self, pod: PodSandbox, container: Container) -> Reply[None]:
        """Everything is in place, the entrypoint does not run before the reply. ``container.pid`` is its init
        process.
        """
        return None

    def post_start_container(self, pod: PodSandbox, container: Container) -> Reply[None]:
        return None

    def update_container(
        self, pod: PodSandbox, container: Container, resources: LinuxResources
    ) -> Reply[Sequence[ContainerUpdate] | None]:
        """New resources are to be set. An update of the same container in the reply overrides them field by field."""
        return None

    def post_update_container(self, pod: PodSandbox, container: Container) -> Reply[None]:
        return None

    def stop_container(self, pod: PodSandbox, container: Container) -> Reply[Sequence[ContainerUpdate] | None]:
        """The container's process has ended: ``container.pid`` is stale, never signal or enter it."""
        return None

    def remove_container(self, pod: PodSandbox, container: Container) -> Reply[None]:
        return None

    def validate_container_adjustment(self, request: ValidateContainerAdjustmentRequest) -> Reply[str | None]:
        """What all plugins together ask for (NRI 0.10). Return a reason to refuse it, None to let it pass.

        A plugin that overrides this can stop every container on the node from being created.
        """
        return None

    # -- hooks into the stub ---------------------------------------------------------------------------------------

    def raw_event(self, method: str, payload: bytes) -> bytes | Awaitable[bytes] | None:
        """Sees a request before it is decoded. Bytes are the reply's payload; None has it decoded and dispatched.

        For plugins that must be fast on events that do not concern them.
        """
        return None

    def events(self) -> frozenset[Event]:
        """What to subscribe to: by default the events whose methods are overridden."""
        return frozenset(event for event in Event if event and self.handles(event))

    def handles(self, event: Event) -> bool:
        return getattr(type(self), event.handler_name) is not getattr(Plugin, event.handler_name)

    def event_mask(self) -> int:
        return mask_of(self.events())
