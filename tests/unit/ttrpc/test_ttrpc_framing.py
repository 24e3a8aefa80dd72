"""Mux and ttrpc framing, against bytes written down from the protocol and not from our own code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nri_warmup.errors import LocalProtocolError, RemoteProtocolError
from nri_warmup.ttrpc import (
    MAX_SEND,
    PLUGIN_CONN,
    RUNTIME_CONN,
    Call,
    Connection,
    Event,
    MustSend,
    RequestReceived,
    ResponseReceived,
    Status,
)

# RegisterPlugin of "demo" with index 10 and 5 s, as accepted by containerd 1.7 and 2.1.
REGISTER = bytes.fromhex(
    "00000002 0000004a"
    "00000040 00000001 01 00"
    "0a1c 6e72692e706b672e6170692e7631616c706861312e52756e74696d65"
    "120e 5265676973746572506c7567696e"
    "1a0a 0a0464656d6f 12023130"
    "20 80e497d012"
)
REGISTER_REPLY = bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")
CONFIGURE_REPLY = bytes.fromhex("00000001 0000000e 00000004 00000001 02 00 1202 1028")
RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
REGISTER_PAYLOAD = bytes.fromhex("0a0464656d6f12023130")

# A request as the runtime's library sends one, with metadata.
CONFIGURE = bytes.fromhex(
    "00000001 00000060"
    "00000056 00000001 01 00"
    "0a1b 6e72692e706b672e6170692e7631616c706861312e506c7567696e"
    "1209 436f6e666967757265"
    "1a04 12026363"
    "20 80a8d6b907"
    "2a20 0a1a 636f6e7461696e6572642d6e616d6573706163652d7474727063 1202 6b38"
)
CONFIGURE_EVENT = RequestReceived(
    stream=1,
    call=Call(
        service=PLUGIN,
        method="Configure",
        payload=bytes.fromhex("12026363"),
        timeout_ns=2_000_000_000,
        raw_metadata=(bytes.fromhex("0a1a636f6e7461696e6572642d6e616d6573706163652d747472706312026b38"),),
    ),
)


def whole(connection: Connection, data: bytes) -> list[Event]:
    return connection.receive_data(data)


def byte_by_byte(connection: Connection, data: bytes) -> list[Event]:
    return [event for byte in data for event in connection.receive_data(bytes((byte,)))]


def with_trailing_bytes(connection: Connection, data: bytes) -> list[Event]:
    """As whole, with the start of another frame after it."""
    events = connection.receive_data(data + b"\0\0\0\1\0\0\0\x0a\0\0\0")
    with pytest.raises(RemoteProtocolError):
        connection.receive_eof()
    return events


THREE_WAYS = pytest.mark.parametrize("feed", [whole, byte_by_byte, with_trailing_bytes])
Feed = Callable[[Connection, bytes], list[Event]]


def test_a_request_is_written_as_the_runtime_accepts_it() -> None:
    assert Connection().request(RUNTIME, "RegisterPlugin", REGISTER_PAYLOAD, 5_000_000_000) == (1, REGISTER)


@THREE_WAYS
def test_an_empty_reply_is_a_header_alone(feed: Feed) -> None:
    connection = Connection()
    stream, _ = connection.request(RUNTIME, "RegisterPlugin", REGISTER_PAYLOAD)
    assert feed(connection, REGISTER_REPLY) == [ResponseReceived(stream=stream, status=Status(), payload=b"")]


@THREE_WAYS
def test_a_request_with_metadata(feed: Feed) -> None:
    events = feed(Connection(), CONFIGURE)
    assert events == [CONFIGURE_EVENT]
    assert isinstance(events[0], RequestReceived)
    assert events[0].call.metadata == (("containerd-namespace-ttrpc", "k8"),)


@THREE_WAYS
def test_the_runtimes_end_reads_what_we_write(feed: Feed) -> None:
    runtime = Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)
    (event,) = feed(runtime, REGISTER)
    assert isinstance(event, RequestReceived)
    assert (event.call.method, event.call.payload, event.call.timeout_ns) == (
        "RegisterPlugin",
        REGISTER_PAYLOAD,
        5_000_000_000,
    )
    assert runtime.reply(event.stream) == REGISTER_REPLY


def test_a_reply_with_payload() -> None:
    connection = Connection()
    connection.receive_data(CONFIGURE)
    assert connection.reply(1, bytes.fromhex("1028")) == CONFIGURE_REPLY


@THREE_WAYS
def test_an_error_reply(feed: Feed) -> None:
    """Status{code: 12, message: "no", details: [one Any]} and nothing else."""
    connection = Connection()
    connection.request(RUNTIME, "UpdateContainers")
    status = bytes.fromhex("080c 12026e6f 1a03 0a0161")
    body = b"\x0a" + bytes((len(status),)) + status
    data = b"\0\0\0\2" + (10 + len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + b"\0\0\0\1\2\0" + body
    assert feed(connection, data) == [ResponseReceived(stream=1, status=Status(code=12, message="no"), payload=b"")]


def test_error_text_is_short_and_stays_utf_8() -> None:
    plugin, runtime = Connection(), Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)
    stream, data = runtime.request(PLUGIN, "CreateContainer")
    plugin.receive_data(data)
    (event,) = runtime.receive_data(plugin.reply_error(stream, 2, "é" * 3000 + "\ud800"))
    assert isinstance(event, ResponseReceived)
    assert event.status == Status(code=2, message="é" * 500)


@pytest.mark.parametrize("size", [0, 1, 4000, 4086 - 3, 4086, 4087, 100_000, MAX_SEND - 5])
def test_no_first_frame_is_larger_than_the_runtimes_buffer(size: int) -> None:
    plugin, runtime = Connection(), Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)
    stream, data = runtime.request(PLUGIN, "CreateContainer")
    plugin.receive_data(data)
    payload = b"p" * size
    sent = plugin.reply(stream, payload)
    sizes, at = [], 0
    while at < len(sent):
        sizes.append(int.from_bytes(sent[at + 4 : at + 8], "big"))
        at += 8 + sizes[-1]
    assert sizes[0] <= 4096 and len(sizes) <= 2 and 0 not in sizes
    assert runtime.receive_data(sent) == [ResponseReceived(stream=stream, status=Status(), payload=payload)]


def test_a_reply_too_large_becomes_an_error() -> None:
    plugin, runtime = Connection(), Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)
    stream, data = runtime.request(PLUGIN, "CreateContainer")
    plugin.receive_data(data)
    (event,) = runtime.receive_data(plugin.reply(stream, b"p" * MAX_SEND))
    assert isinstance(event, ResponseReceived)
    assert event.status.code == 8 and not event.payload


def test_a_request_too_large_is_our_own_fault_and_burns_no_stream() -> None:
    connection = Connection()
    with pytest.raises(LocalProtocolError):
        connection.request(RUNTIME, "UpdateContainers", b"p" * MAX_SEND)
    assert connection.request(RUNTIME, "UpdateContainers")[0] == 1


@pytest.mark.parametrize("gap", [2, 4, 100])
def test_stream_ids_may_skip(gap: int) -> None:
    connection = Connection()
    for stream in (1, 1 + gap):
        (event,) = connection.receive_data(request_message(stream))
        assert isinstance(event, RequestReceived) and event.stream == stream


@pytest.mark.parametrize("streams", [(2,), (1, 1), (5, 3), (1, 0)])
def test_stream_ids_that_are_even_or_used_are_refused_as_go_does(streams: tuple[int, ...]) -> None:
    connection = Connection()
    events = [event for stream in streams for event in connection.receive_data(request_message(stream))]
    refused = events[-1]
    assert isinstance(refused, MustSend)
    runtime = Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)
    runtime._waiting.add(streams[-1])
    (answer,) = runtime.receive_data(refused.data)
    assert isinstance(answer, ResponseReceived) and answer.status.code == 3
    (event,) = connection.receive_data(request_message(101))
    assert isinstance(event, RequestReceived)


def test_a_reply_needs_a_request() -> None:
    connection = Connection()
    with pytest.raises(LocalProtocolError):
        connection.reply(1)
    connection.receive_data(CONFIGURE)
    connection.reply(1)
    with pytest.raises(LocalProtocolError):
        connection.reply(1)


def test_a_request_above_the_cap_is_read_past_and_refused() -> None:
    """By one call and byte by byte; what follows is read as usual."""
    big = request_message(1, b"x" * 5000)
    for step in (len(big), 7):
        connection = Connection(max_receive=1000)
        events = []
        data = big + request_message(3)
        for at in range(0, len(data), step):
            events += connection.receive_data(data[at : at + step])
        assert [type(event) for event in events] == [MustSend, RequestReceived]
        connection.receive_eof()


def test_unknown_types_connections_and_streams_are_ignored() -> None:
    connection = Connection()
    data = bytes.fromhex("00000001 0000000a 00000000 00000001 03 00")  # stream data
    data += bytes.fromhex("00000001 0000000a 00000000 00000001 02 00")  # a response where we serve
    data += bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")  # an answer nobody waits for
    data += bytes.fromhex("00000007 00000003 616263")  # a connection nobody has
    data += bytes.fromhex("00000001 00000000")  # an empty frame
    assert connection.receive_data(data) == []
    connection.receive_eof()


@pytest.mark.parametrize(
    "body",
    ["0a05", "0aff", "0a02ffff", "ff" * 11, "07", "0b", "00", "220000", "0a8080808080808080808000"],
    ids=lambda body: body[:12],
)
def test_a_request_that_is_no_protobuf_is_the_other_sides_fault(body: str) -> None:
    connection = Connection()
    with pytest.raises(RemoteProtocolError):
        connection.receive_data(message(1, 1, 1, bytes.fromhex(body)))
    with pytest.raises(LocalProtocolError):
        connection.receive_data(b"")


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    body = bytes.fromhex("7a016178017900000000000000007d0000000008011204 54657374")
    (event,) = Connection().receive_data(message(1, 1, 1, body))
    assert isinstance(event, RequestReceived) and event.call == Call(service="", method="Test")


def test_the_end_inside_a_message_is_told_from_the_end_between_two() -> None:
    connection = Connection()
    connection.receive_data(CONFIGURE)
    connection.receive_eof()
    for cut in (1, 8, 12, len(CONFIGURE) - 1):
        connection = Connection()
        connection.receive_data(CONFIGURE[:cut])
        with pytest.raises(RemoteProtocolError):
            connection.receive_eof()


def message(conn: int, stream: int, kind: int, body: bytes) -> bytes:
    data = len(body).to_bytes(4, "big") + stream.to_bytes(4, "big") + bytes((kind, 0)) + body
    return conn.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


def request_message(stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    field = b"\x1a" + bytes((size & 0x7F | 0x80, size >> 7)) + payload if payload else b""
    return message(1, stream, 1, b"\x12\x04Test" + field)
