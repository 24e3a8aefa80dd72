"""One worker as the daemon sees it, and what came of it in the model's words."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

from nri_warmup.inject.records import Records
from nri_warmup.kernel import process
from nri_warmup.model.outcome import Outcome, OutcomeState
from nri_warmup.model.warmset import FileOutcome, FileState

STUCK_S = 0.8
"""A worker that is still there so long after it was killed waits for something inside the kernel."""


class Running:
    """One worker of one job."""

    def __init__(self, job_id: str, group: str, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.job_id = job_id
        self.group = group
        self.number = number
        self.records = Records()
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.status: int | None = None
        self.stopped: tuple[OutcomeState, str] | None = None
        """Why we ended it, where it was us."""
        self.abandoned = False
        """Its job is over."""
        self.killed_at: float | None = None
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the worker has exited, or the zygote has."""
        self.stopping: asyncio.Future[None] = loop.create_future()
        """Done when we have ended it."""

    def stop(self, state: OutcomeState, reason: str) -> None:
        if self.stopped is None:
            self.stopped = (state, reason)
            self.stopping.set_result(None)
        self.kill()

    def end(self) -> None:
        """Nothing more will come of it."""
        if not self.gone.done():
            self.gone.set_result(None)

    def kill(self) -> None:
        if self.pidfd is None:
            return
        if self.killed_at is None:
            self.killed_at = time.monotonic()
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def is_alive(self) -> bool:
        """Asked of the kernel: whoever its parent is by now, and whatever the zygote has said."""
        return self.pidfd is not None and process.is_alive(self.pidfd)

    def is_stuck(self) -> bool:
        return self.killed_at is not None and time.monotonic() - self.killed_at >= STUCK_S and self.is_alive()

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def outcome(self) -> Outcome:
        """The worker's own words where it came to an end, else what is known of it."""
        records = self.records
        files = tuple(records.files)
        end = records.end
        if end is not None and (self.stopped is None or self.stopped[0] is not OutcomeState.FAILED):
            return Outcome(
                state=end.state,
                reason="; ".join(filter(None, (end.reason, *records.notes))),
                wanted_bytes=end.wanted_bytes,
                resident_bytes=end.resident_bytes,
                read_bytes=end.read_bytes,
                owned_bytes=end.owned_bytes,
                large_folio_bytes=end.large_folio_bytes,
                touched_bytes=records.touched_bytes,
                touched_seconds=records.touched_seconds,
                files_total=end.files,
                files=files,
                charged=records.charged,
            )
        state, reason = self.stopped or (OutcomeState.FAILED, _death(self.status))
        stuck = self.is_stuck()
        if stuck:
            reason += "; its worker waits inside the kernel and does not die"
        elif self.pid is None and not self.gone.done():
            reason += "; the zygote did not answer"
        return Outcome(
            state=state,
            reason=reason,
            wanted_bytes=records.progress.wanted_bytes,
            resident_bytes=None,
            read_bytes=records.progress.read_bytes,
            files_total=len(files),
            files=files,
            charged=records.charged,
            stuck=stuck,
        )


def _death(status: int | None) -> str:
    if status is None:
        return "the worker vanished"
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return "the worker was killed (SIGKILL: by the OOM killer, or by somebody)"
    return f"the worker died of signal {-code}" if code < 0 else f"the worker exited with {code}"


def merge(first: Outcome, second: Outcome, checked: Outcome | None) -> Outcome:
    """A first pass, and a second one over the files that it could not read. ``checked`` is the first one's files
    measured once more, for the second may have driven them out; None where there was no time for it."""
    again = {file.path: file for file in second.files}
    now = {file.path: file for file in checked.files} if checked is not None else {}
    files = tuple(again.get(file.path) or _as_now(file, now.get(file.path)) for file in first.files)
    bad = [file for file in files if file.state not in (FileState.WARMED, FileState.EMPTY)]
    there = None if checked is None else checked.resident_bytes
    lost = 0 if there is None or first.resident_bytes is None else first.resident_bytes - there
    state, reason = first.state, first.reason
    if second.state is not OutcomeState.DONE:
        state, reason = second.state, second.reason
    elif lost > 0:
        state, reason = OutcomeState.PARTIAL, f"{lost} bytes were driven out again by what was read later"
    elif not bad and first.state is OutcomeState.PARTIAL and first.files_total == len(files):
        state, reason = OutcomeState.DONE, ""
    return replace(
        first,
        state=state,
        reason=reason,
        files=files,
        wanted_bytes=first.wanted_bytes + second.wanted_bytes,
        resident_bytes=_plus(there, second.resident_bytes),
        read_bytes=first.read_bytes + second.read_bytes,
        owned_bytes=_plus(first.owned_bytes, second.owned_bytes),
        large_folio_bytes=_plus(first.large_folio_bytes, second.large_folio_bytes),
        touched_bytes=first.touched_bytes + second.touched_bytes,
        touched_seconds=first.touched_seconds + second.touched_seconds,
        stuck=second.stuck,
    )


def _as_now(file: FileOutcome, now: FileOutcome | None) -> FileOutcome:
    if now is None or now.resident_bytes is None or now.resident_bytes == file.resident_bytes:
        return file
    if file.state is FileState.WARMED and now.resident_bytes < file.wanted_bytes:
        detail = f"{file.wanted_bytes - now.resident_bytes} bytes were driven out again"
        return replace(file, state=FileState.PARTIAL, resident_bytes=now.resident_bytes, detail=detail)
    return replace(file, resident_bytes=now.resident_bytes)


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
