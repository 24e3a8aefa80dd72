"""Fuzzes everything that reads the other side's bytes: nothing but RemoteProtocolError may come out.

    python tests/fuzz/fuzz_ttrpc.py [CORPUS...]            with atheris, coverage-guided, until stopped
    python tests/fuzz/fuzz_ttrpc.py --random --seconds 60  plain random mutations of valid traffic, no atheris needed

``--seed`` repeats a random run. The input that broke something is printed in hexadecimal.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.nri.scan import SyncSieve, event_number, id_inside
from nri_warmup.nri.versions import parse_configure
from nri_warmup.ttrpc import PLUGIN_CONN, RUNTIME_CONN, Connection, MustSend, RequestReceived

INTEREST = (frozenset({b"a"}), frozenset({b"label", b"value"}))


def fuzz_one(data: bytes) -> None:
    """Both ends of a connection on the same bytes, whole and in two pieces; payloads go to all that look into them."""
    cut = data[0] % (len(data) + 1) if data else 0
    for connection in (
        Connection(),
        Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN),
        Connection(max_receive=64),
    ):
        connection.request("service", "method", b"payload")
        try:
            for piece in (data[:cut], data[cut:]):
                for event in connection.receive_data(piece):
                    if isinstance(event, RequestReceived):
                        _ = event.call.metadata
                        look_into(event.call.payload)
                        connection.reply(event.stream, event.call.payload)
                    elif isinstance(event, MustSend):
                        assert event.data
            connection.receive_eof()
        except RemoteProtocolError:
            pass
    look_into(data)


def look_into(payload: bytes) -> None:
    for read in (parse_configure, event_number, lambda p: id_inside(p, 2), lambda p: id_inside(p, 3), _sift):
        try:
            read(payload)
        except RemoteProtocolError:
            pass


def _sift(payload: bytes) -> None:
    sieve = SyncSieve()
    sieve.add(payload)
    for pod, container in sieve.sift(INTEREST):
        assert isinstance(pod, bytes) and isinstance(container, bytes)


def seeds() -> list[bytes]:
    """Valid traffic to start from."""
    from nri_warmup.nri import messages as m

    pod = m.PodSandbox(id="p", name="pod", labels={"label": "value"})
    container = m.Container(id="c", pod_sandbox_id="p", env=["A=1"] * 5)
    runtime = Connection(serves=RUNTIME_CONN, calls=PLUGIN_CONN)
    service = "nri.pkg.api.v1alpha1.Plugin"
    messages = {
        "Configure": m.ConfigureRequest(config="c", runtime_name="containerd", request_timeout=2000),
        "Synchronize": m.SynchronizeRequest(pods=[pod], containers=[container], more=True),
        "CreateContainer": m.CreateContainerRequest(pod=pod, container=container),
        "StateChange": m.StateChangeEvent(event=6, pod=pod, container=container),  # type: ignore[arg-type]
    }
    calls = [
        runtime.request(service, name, message.SerializeToString(), 10**9)[1] for name, message in messages.items()
    ]
    plugin = Connection()
    plugin.receive_data(b"".join(calls))
    replies = [plugin.reply(1, b"\x10\x28"), plugin.reply_error(3, 12, "no"), plugin.reply(5, b"x" * 5000)]
    return [*calls, *replies, b"".join(calls), *(message.SerializeToString() for message in messages.values())]


def mutate(data: bytes, pick: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(pick.randint(1, 4)):
        at = pick.randrange(len(out) + 1)
        match pick.randrange(5):
            case 0 if at < len(out):
                out[at] = pick.choice((0, 1, 0x7F, 0x80, 0xFF, pick.randrange(256)))
            case 1:
                out[at:at] = pick.randbytes(pick.randint(1, 8))
            case 2:
                del out[at : at + pick.randint(1, 16)]
            case 3:
                out[at:at] = out[pick.randrange(len(out) + 1) :][:64]
            case _:
                del out[at:]
    return bytes(out)


def run_random(seconds: float, seed: int | None = None, most: int | None = None) -> int:
    """Returns how many inputs were tried."""
    pick = random.Random(seed)
    start, tried = seeds(), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and (most is None or tried < most):
        data = mutate(pick.choice(start), pick)
        try:
            fuzz_one(data)
        except Exception:
            print(f"broken by {data.hex()}", file=sys.stderr)
            raise
        tried += 1
    return tried


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--random", action="store_true", help="no atheris, even where it is installed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int)
    options, rest = parser.parse_known_args()
    if options.random or importlib.util.find_spec("atheris") is None:
        print(f"{run_random(options.seconds, options.seed)} inputs, nothing broken")
        return 0
    import atheris

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *rest], fuzz_one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
