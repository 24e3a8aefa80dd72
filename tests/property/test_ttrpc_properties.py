"""Whatever is written is read back, however it is cut; whatever is read raises nothing but RemoteProtocolError."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.nri.scan import SyncSieve, event_number, id_inside
from nri_warmup.nri.versions import parse_configure
from nri_warmup.ttrpc import PLUGIN_CONN, RUNTIME_CONN, Connection, Event, RequestReceived, ResponseReceived
from nri_warmup.ttrpc.envelope import (
    parse_request,
    parse_response,
    render_error,
    render_request,
    render_response,
)
from nri_warmup.ttrpc.frames import MAX_RECEIVE
from nri_warmup.ttrpc.wire import read_varint, signed, varint

ROOT = Path(__file__).resolve().parents[2]

words = st.text(max_size=30)
payloads = st.binary(max_size=300) | st.integers(4000, 9000).map(lambda size: b"p" * size)
calls = st.lists(st.tuples(words, words, payloads, st.integers(0, 2**62)), max_size=6)


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """The same bytes in pieces."""
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]


def runtime_end() -> Connection:
    return Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)


@given(calls, st.data())
def test_requests_arrive_whole_however_they_are_cut(
    wanted: list[tuple[str, str, bytes, int]], data: st.DataObject
) -> None:
    runtime, plugin = runtime_end(), Connection()
    stream = b"".join(runtime.request(*call)[1] for call in wanted)
    events: list[Event] = []
    for piece in data.draw(cut(stream)):
        events += plugin.receive_data(piece)
    plugin.receive_eof()
    got = [
        (e.call.service, e.call.method, e.call.payload, e.call.timeout_ns)
        for e in events
        if isinstance(e, RequestReceived)
    ]
    assert got == wanted and len(events) == len(wanted)


@given(st.lists(payloads, min_size=1, max_size=6), st.randoms(), st.data())
def test_replies_in_any_order_find_their_calls(wanted: list[bytes], order: Any, data: st.DataObject) -> None:
    runtime, plugin = runtime_end(), Connection()
    streams = []
    for payload in wanted:
        stream, sent = runtime.request("s", "m", payload)
        streams.append((stream, payload))
        plugin.receive_data(sent)
    order.shuffle(streams)
    answers = b"".join(plugin.reply(stream, payload) for stream, payload in streams)
    events: list[Event] = []
    for piece in data.draw(cut(answers)):
        events += runtime.receive_data(piece)
    assert [(e.stream, e.payload) for e in events if isinstance(e, ResponseReceived)] == streams


@given(st.binary(max_size=200))
def test_byte_by_byte_is_the_same_as_whole(data: bytes) -> None:
    """For any bytes, sense or not; an error comes at the same place."""

    def run(pieces: list[bytes]) -> tuple[list[Event], bool]:
        connection, events = Connection(), []
        try:
            for piece in pieces:
                events += connection.receive_data(piece)
        except RemoteProtocolError:
            return events, True
        return events, False

    one_by_one, failed = run([bytes((byte,)) for byte in data])
    whole, whole_failed = run([data])
    assert failed == whole_failed
    assert whole == one_by_one or failed


frames = st.builds(
    lambda conn, kind, stream, body: (
        conn.to_bytes(4, "big")
        + (len(body) + 10).to_bytes(4, "big")
        + len(body).to_bytes(4, "big")
        + stream.to_bytes(4, "big")
        + bytes((kind, 0))
        + body
    ),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 9),
    st.binary(max_size=60),
)


@given(st.binary(max_size=100) | st.lists(frames, max_size=5).map(b"".join))
@settings(max_examples=400)
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    for connection in (Connection(), runtime_end(), Connection(max_receive=20)):
        connection.request("s", "m")
        try:
            for event in connection.receive_data(data):
                if isinstance(event, RequestReceived):
                    _ = event.call.metadata
            connection.receive_eof()
        except RemoteProtocolError:
            pass


@given(st.binary(max_size=80))
@settings(max_examples=400)
def test_arbitrary_messages_raise_nothing_else(data: bytes) -> None:
    for read in (
        parse_request,
        parse_response,
        parse_configure,
        event_number,
        lambda d: id_inside(d, 2),
        lambda d: SyncSieve().add(d),
        _sift,
    ):
        try:
            read(data)
        except RemoteProtocolError:
            pass


def _sift(data: bytes) -> None:
    sieve = SyncSieve()
    sieve.add(data)
    sieve.sift((frozenset({b"a"}), frozenset()))


@given(st.integers(-(2**63), 2**64 - 1))
def test_varints_round_trip(value: int) -> None:
    data = varint(value)
    read, end = read_varint(data + b"\xff", 0)
    assert end == len(data)
    assert read == value or signed(read) == value


# -- against protobuf itself ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def envelope() -> dict[str, Any]:
    """The message classes of proto/ttrpc.proto, compiled here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from grpc_tools import protoc

    with tempfile.NamedTemporaryFile() as out:
        assert protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={out.name}", "ttrpc.proto"]) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(out.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    names = ("Request", "Response", "Status", "KeyValue")
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ttrpc.{name}")) for name in names}


@given(words, words, payloads, st.integers(-(2**63), 2**63 - 1), st.lists(st.tuples(words, words), max_size=3))
def test_requests_are_what_protobuf_writes(
    envelope: dict[str, Any], service: str, method: str, payload: bytes, timeout: int, metadata: list[tuple[str, str]]
) -> None:
    theirs = envelope["Request"](
        service=service,
        method=method,
        payload=payload,
        timeout_nano=timeout,
        metadata=[envelope["KeyValue"](key=k, value=v) for k, v in metadata],
    )
    ours = render_request(service, method, payload, timeout, tuple(metadata))
    assert ours == theirs.SerializeToString()
    read = parse_request(theirs.SerializeToString())
    assert (read.service, read.method, read.payload, read.timeout_ns) == (service, method, payload, timeout)
    assert read.metadata == tuple(metadata)


@given(st.integers(1, 2**31 - 1), words, payloads, st.lists(st.binary(max_size=5), max_size=2))
def test_responses_are_what_protobuf_writes(
    envelope: dict[str, Any], code: int, message: str, payload: bytes, details: list[bytes]
) -> None:
    status = envelope["Status"](code=code, message=message)
    response = envelope["Response"]
    assert render_error(code, message) == response(status=status).SerializeToString()
    assert render_response(payload) == response(payload=payload).SerializeToString()
    status.details.extend(details)
    read, read_payload = parse_response(response(status=status, payload=payload).SerializeToString())
    assert (read.code, read.message, read_payload) == (code, message, payload)


def test_the_cap_is_what_the_oldest_runtimes_need() -> None:
    assert MAX_RECEIVE >= 16 << 20
