"""What a worker says, read three ways, and what is done with nonsense."""

from __future__ import annotations

import random

import pytest

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.inject.records import Records
from nri_warmup.inject.wire import MAX_FILE_RECORDS, MAX_LINE, Task, render_record
from nri_warmup.model.outcome import OutcomeState, Progress
from nri_warmup.model.warmset import FileOutcome, FileState

PATH = 'a "b"\\\n\x01\x7fß\udcff'
STREAM = b"".join(
    (
        render_record(("joined", True)),
        render_record(("note", "something")),
        render_record(("progress", 100, 50, 40, 1, PATH)),
        render_record(("file", PATH, "warmed", 10, None, 5, None, 0, True, "why")),
        render_record(("end", "partial", "because", 100, None, 40, 30, None, 2)),
    )
)


@pytest.mark.parametrize("width", [1, 7, len(STREAM)])
def test_any_split_gives_the_same(width: int) -> None:
    records = Records()
    for i in range(0, len(STREAM), width):
        records.feed(STREAM[i : i + width])
    assert records.charged and records.notes == ["something"]
    assert records.progress == Progress(wanted_bytes=100, resident_bytes=50, read_bytes=40, files=1, current=PATH)
    assert records.files == [
        FileOutcome(
            path=PATH,
            state=FileState.WARMED,
            wanted_bytes=10,
            resident_bytes=None,
            read_bytes=5,
            owned_bytes=None,
            large_folio_bytes=0,
            active=True,
            detail="why",
        )
    ]
    assert records.end is not None
    assert (records.end.state, records.end.reason, records.end.owned_bytes) == (OutcomeState.PARTIAL, "because", 30)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"nonsense\n",
        b"{}\n",
        b"[]\n",
        b'["unknown"]\n',
        b'[["progress"]]\n',
        b'["joined"]\n',
        b'["joined",1]\n',
        b'["joined",true,true]\n',
        b'["note",null]\n',
        b'["progress",1,2,3,4]\n',
        b'["progress",-1,2,3,4,""]\n',
        b'["progress",1.5,2,3,4,""]\n',
        b'["progress",true,2,3,4,""]\n',
        b'["progress",9223372036854775808,2,3,4,""]\n',
        b'["file","p","eaten",1,1,1,1,1,false,""]\n',
        b'["file",1,"warmed",1,1,1,1,1,false,""]\n',
        b'["end","container-eaten","",0,0,0,0,0,0]\n',
        b'["end","cancelled","",0,0,0,0,0,0]\n',
        b'["end","done","",0,0,0,0,0,0]\n["joined",true]\n',
        b'["note","' + b"x" * 9000 + b'"]\n',
        b"[" * 50_000 + b"\n",
        b"x" * (MAX_LINE + 1),
        b'["progress",1,2,3,NaN,""]\n',
    ],
)
def test_nonsense_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Records().feed(line)


def test_touching_is_told_in_bytes_and_time() -> None:
    records = Records()
    records.feed(render_record(("touched", 4096, 1_500_000)))
    assert (records.touched_bytes, records.touched_seconds) == (4096, 1.5)


def test_a_worker_cannot_fill_the_daemon() -> None:
    records = Records()
    line = render_record(("file", "p", "warmed", 1, 1, 1, 1, 1, False, ""))
    records.feed(line * MAX_FILE_RECORDS)
    with pytest.raises(RemoteProtocolError):
        records.feed(line)
    notes = Records()
    for _ in range(1000):
        notes.feed(render_record(("note", "x" * 8000)))
    assert len(notes.notes) == 32


def test_arbitrary_bytes_raise_nothing_else() -> None:
    rng = random.Random(7)
    for _ in range(300):
        records = Records()
        data = bytes(rng.choice(b'[]",0123456789abc\n\\u\xff') for _ in range(200))
        try:
            records.feed(STREAM[: rng.randrange(len(STREAM))] + data)
        except RemoteProtocolError:
            pass


def test_task_round_trip() -> None:
    task = Task()
    task.patterns, task.cgroups, task.owner = ("/\udcff",), (("/sys/x", True),), 5
    again = Task.load(task.dump())
    assert all(getattr(again, name) == getattr(task, name) for name in Task.__slots__)
