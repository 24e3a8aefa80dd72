"""What a worker says, parsed on the daemon's side. The worker has handled a tenant's data: nothing of it is taken on
trust."""

from __future__ import annotations

import json
from dataclasses import dataclass

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.inject.wire import MAX_FILE_RECORDS, MAX_LINE
from nri_warmup.model.outcome import OutcomeState, Progress
from nri_warmup.model.warmset import FileOutcome, FileState

MAX_NOTES = 32
MAX_TEXT = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The worker's own verdict. Bytes; None where it cannot be told."""

    state: OutcomeState
    reason: str
    wanted_bytes: int
    resident_bytes: int | None
    read_bytes: int
    owned_bytes: int | None
    large_folio_bytes: int | None
    files: int


class Records:
    """Bytes in, knowledge out. ``feed`` raises RemoteProtocolError for anything that is not a record."""

    def __init__(self) -> None:
        self._buffer = b""
        self.progress = Progress()
        self.files: list[FileOutcome] = []
        self.notes: list[str] = []
        self.charged = False
        self.touched_bytes = 0
        self.touched_seconds = 0.0
        self.end: End | None = None

    def feed(self, data: bytes) -> bool:
        """True when the progress has changed."""
        before = self.progress
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE:
            raise RemoteProtocolError("a record longer than any worker writes")
        for line in lines:
            self._line(line)
        return self.progress is not before

    def _line(self, line: bytes) -> None:
        if len(line) > MAX_LINE:
            raise RemoteProtocolError("a record longer than any worker writes")
        try:
            fields = json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            raise RemoteProtocolError("a record that is not JSON") from None
        if not isinstance(fields, list) or not fields:
            raise RemoteProtocolError("a record that is not a list")
        kind, rest = fields[0], _Fields(fields[1:])
        if self.end is not None:
            raise RemoteProtocolError("a record after the end")
        if kind == "progress":
            self.progress = _progress(rest)
        elif kind == "file":
            outcome = _file(rest)
            if len(self.files) >= MAX_FILE_RECORDS:
                raise RemoteProtocolError("more file records than asked for")
            self.files.append(outcome)
        elif kind == "note":
            text = rest.text()
            if len(self.notes) < MAX_NOTES:
                self.notes.append(text)
        elif kind == "joined":
            self.charged = rest.boolean()
        elif kind == "touched":
            self.touched_bytes = rest.count()
            self.touched_seconds = rest.count() / 1e6
        elif kind == "end":
            self.end = _end(rest)
        else:
            raise RemoteProtocolError("a record of an unknown kind")
        rest.done()


class _Fields:
    """Typed access to the elements of a record, in order."""

    def __init__(self, fields: list[object]) -> None:
        self._fields = iter(fields)

    def _next(self) -> object:
        try:
            return next(self._fields)
        except StopIteration:
            raise RemoteProtocolError("a record that is too short") from None

    def done(self) -> None:
        if next(self._fields, self) is not self:
            raise RemoteProtocolError("a record that is too long")

    def text(self) -> str:
        value = self._next()
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise RemoteProtocolError("a field that is not a text")
        return value

    def boolean(self) -> bool:
        value = self._next()
        if not isinstance(value, bool):
            raise RemoteProtocolError("a field that is not a truth value")
        return value

    def count(self) -> int:
        value = self.maybe_count()
        if value is None:
            raise RemoteProtocolError("a field that is not a number")
        return value

    def maybe_count(self) -> int | None:
        value = self._next()
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise RemoteProtocolError("a field that is not a number of bytes or files")
        return value


def _progress(fields: _Fields) -> Progress:
    return Progress(
        wanted_bytes=fields.count(),
        resident_bytes=fields.count(),
        read_bytes=fields.count(),
        files=fields.count(),
        current=fields.text(),
    )


def _file(fields: _Fields) -> FileOutcome:
    path = fields.text()
    try:
        state = FileState(fields.text())
    except ValueError:
        raise RemoteProtocolError("a file state that does not exist") from None
    return FileOutcome(
        path=path,
        state=state,
        wanted_bytes=fields.count(),
        resident_bytes=fields.maybe_count(),
        read_bytes=fields.count(),
        owned_bytes=fields.maybe_count(),
        large_folio_bytes=fields.maybe_count(),
        active=fields.boolean(),
        detail=fields.text(),
    )


_WORKER_ENDS = frozenset(
    {
        OutcomeState.DONE,
        OutcomeState.PARTIAL,
        OutcomeState.OVER_BUDGET,
        OutcomeState.DEADLINE,
        OutcomeState.CONTAINER_GONE,
        OutcomeState.FAILED,
        OutcomeState.OBSERVED,
    }
)


def _end(fields: _Fields) -> End:
    try:
        state = OutcomeState(fields.text())
    except ValueError:
        raise RemoteProtocolError("an outcome that does not exist") from None
    if state not in _WORKER_ENDS:
        raise RemoteProtocolError("an outcome that is not for a worker to give")
    return End(
        state=state,
        reason=fields.text(),
        wanted_bytes=fields.count(),
        resident_bytes=fields.maybe_count(),
        read_bytes=fields.count(),
        owned_bytes=fields.maybe_count(),
        large_folio_bytes=fields.maybe_count(),
        files=fields.count(),
    )
