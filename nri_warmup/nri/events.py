"""The events of NRI: their numbers, subscription bits, and the methods by which they come.

An event comes in one of two forms. CreateContainer, UpdateContainer, StopContainer, UpdatePodSandbox, Synchronize,
Configure and ValidateContainerAdjustment have a method of their own in every version that knows them. The other nine
come as StateChange with a number up to NRI 0.11 and by a method of their own from 0.12 on.
"""

from __future__ import annotations

from enum import IntEnum

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"


class Event(IntEnum):
    """Numbers as in the protocol's ``Event``. SYNCHRONIZE has none there: it always comes."""

    SYNCHRONIZE = 0
    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14

    @property
    def bit(self) -> int:
        """The bit that subscribes to it."""
        return 1 << (self - 1) if self else 0

    @property
    def method_name(self) -> str:
        """``CREATE_CONTAINER`` -> ``CreateContainer``."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def handler_name(self) -> str:
        """The method of Plugin that hears of it."""
        return self.name.lower()


METHODS = {event.method_name: event for event in Event}
"""Method name -> event, for everything but Configure, Shutdown and StateChange."""

POD_EVENTS = frozenset(
    {
        Event.RUN_POD_SANDBOX,
        Event.STOP_POD_SANDBOX,
        Event.REMOVE_POD_SANDBOX,
        Event.UPDATE_POD_SANDBOX,
        Event.POST_UPDATE_POD_SANDBOX,
    }
)

MASK_TO_0_9 = 0x7FF
"""Bits that every runtime accepts. One bit too many and it closes the connection."""
MASK_FROM_0_10 = 0x3FFF


def mask_of(events: frozenset[Event] | set[Event]) -> int:
    """A subscription mask. Never 0: on the wire that means *all* events, so the cheapest and rarest is asked for
    instead.
    """
    mask = 0
    for event in events:
        mask |= event.bit
    return mask or Event.REMOVE_POD_SANDBOX.bit
