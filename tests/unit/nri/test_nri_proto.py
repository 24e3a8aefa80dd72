"""The generated code is what proto/ says, and the messages are what the protocol says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nri_warmup.nri import messages as m
from nri_warmup.nri._pb import nri_pb2
from nri_warmup.nri.events import METHODS, Event

ROOT = Path(__file__).resolve().parents[3]


def test_generated_code_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "proto/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_difference_is_found_and_named(tmp_path: Path) -> None:
    """In a copy of the tree with one field renumbered."""
    import shutil

    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    for package in ("nri_warmup/nri/_pb", "tests/lab/_pb"):
        if (ROOT / package).exists():
            shutil.copytree(ROOT / package, tmp_path / package)
    proto = tmp_path / "proto/nri.proto"
    proto.write_text(proto.read_text().replace("int32 events = 2;", "int32 events = 1;"))
    done = subprocess.run(
        [sys.executable, tmp_path / "proto/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "nri_warmup/nri/_pb/nri_pb2.py: not what" in done.stderr


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (m.ConfigureResponse(events=0x28), "1028"),
        (m.RegisterPluginRequest(plugin_name="demo", plugin_idx="10"), "0a0464656d6f12023130"),
        (m.SynchronizeResponse(more=True), "1001"),
        (m.ContainerAdjustment(annotations={"a": "b"}), "12060a0161120162"),
        (m.StateChangeEvent(event=nri_pb2.START_CONTAINER), "0806"),
        (m.LinuxMemory(limit=m.OptionalInt64(value=0)), "0a00"),
        (m.Container(image=m.Image(name="i")), "b201030a0169"),
    ],
)
def test_fields_have_the_protocols_numbers(message: object, encoded: str) -> None:
    assert message.SerializeToString().hex() == encoded  # type: ignore[attr-defined]


def test_events_are_numbered_as_in_the_protocol() -> None:
    theirs = {name: number for name, number in nri_pb2.Event.items() if name not in ("UNKNOWN", "LAST")}
    assert theirs == {event.name: int(event) for event in Event if event}


def test_every_method_of_the_service_is_known() -> None:
    service = nri_pb2.DESCRIPTOR.services_by_name["Plugin"]
    assert set(service.methods_by_name) == set(METHODS) | {"Configure", "Shutdown", "StateChange"}
