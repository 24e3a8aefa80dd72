"""Mux and ttrpc framing without I/O: bytes in, events out. Knows nothing of NRI's messages.

``Connection`` is the one object a user holds; ``wire`` looks into protobuf messages without decoding them.
"""

from nri_warmup.ttrpc.connection import (
    PLUGIN_CONN,
    RUNTIME_CONN,
    Connection,
    Event,
    MustSend,
    RequestReceived,
    ResponseReceived,
)
from nri_warmup.ttrpc.envelope import Call, Code, Status
from nri_warmup.ttrpc.frames import MAX_RECEIVE, MAX_SEND

__all__ = [
    "MAX_RECEIVE",
    "MAX_SEND",
    "PLUGIN_CONN",
    "RUNTIME_CONN",
    "Call",
    "Code",
    "Connection",
    "Event",
    "MustSend",
    "RequestReceived",
    "ResponseReceived",
    "Status",
]
