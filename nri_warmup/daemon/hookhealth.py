"""Whether the OCI hook may be injected on this host, now. A hook that fails is a container that does not start.

Four answers have to be yes: hook and interpreter passed a run on this host; neither file has changed since (looked at
on every decision: two stats); no validator of the runtime forbids hooks (read from its configuration, ``veto.py``); and
the runtime has not undone a creation with a hook in it. The last is for a validator that could not be read: its first
refusal shows as a container that is removed before it was created, and for some minutes no second one follows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nri_warmup.daemon import logs
from nri_warmup.model.lifecycle import Runtime
from nri_warmup.model.node import NodeState

_TEST_STATE = b'{"ociVersion":"1.0.2","id":"self-test","status":"creating","pid":2,"bundle":"/"}'
_TEST_S = 10.0
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_UNDONE_IN_A_ROW = 3
"""Creations undone one after the other, once hooks have been seen to work, that make us stop."""

_OFF_S = 600.0
_FIRST_VALIDATOR = (0, 10)
"""NRI 0.10 brought ValidateContainerAdjustment: an older runtime cannot refuse a hook."""
_TAKEN_BACK = (
    "the runtime took back the creation of a container with our hook; a validator may forbid hooks "
    "(reject_oci_hook_adjustment). Tried again in some minutes"
)

Stamp = tuple[int, int, int, int]


def interpreter(path: str) -> str:
    """The program of the first line; empty where there is none."""
    try:
        with Path(path).open("rb") as stream:
            line = stream.readline(256)
    except OSError:
        return ""
    words = line[2:].split()
    return os.fsdecode(words[0]) if line.startswith(b"#!") and words else ""


class HookHealth:
    """``path`` is the hook as the runtime sees it, which is as we see it: both in the host's mount namespace."""

    def __init__(
        self,
        path: str,
        control_socket: str,
        read_veto: Callable[[Runtime], str] = lambda runtime: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._read_veto = read_veto
        self.reason = "the OCI hook has not been tested yet"
        self._control_socket = os.path.abspath(control_socket)
        self._tested: tuple[Stamp | None, Stamp | None] = (None, None)
        self._interpreter = ""
        self._clock = clock
        self._veto = ""
        self._off_until = 0.0
        self._can_refuse = True
        self._undone = 0
        self._worked = False

    @property
    def veto(self) -> str:
        """Why the runtime takes no hook of anybody's; empty where nothing known is against it."""
        return self._veto

    # -- what the pipeline asks and tells ----------------------------------------------------------------------------

    def overlay(self, node: NodeState) -> NodeState:
        """``node`` with what is known of the hook at this moment."""
        reason = self._veto or self.reason or (_TAKEN_BACK if self._clock() < self._off_until else "")
        if not reason and self._stamps() != self._tested:
            reason = f"{self.path} or its interpreter has changed and is tested again in a moment"
        return replace(
            node,
            hook_usable=not reason,
            hook_reason=reason,
            hook_path=self.path,
            control_socket=self._control_socket,
        )

    def runtime_connected(self, runtime: Runtime) -> None:
        """Its configuration is read anew, and what was learnt of another run of it is forgotten."""
        self._veto = self._read_veto(runtime)
        self._can_refuse = runtime.nri_version >= _FIRST_VALIDATOR
        self._undone, self._worked, self._off_until = 0, False, 0.0
        if self._veto:
            logs.warning("gate hook is not to be had", reason=self._veto)

    def created(self) -> None:
        """A container with our hook was created."""
        self._undone, self._worked = 0, True

    def undone(self) -> None:
        """One was taken back before it was created: by a validator, or for a reason of its own; we are not told.

        So the gate is off for a while only, and not at all where the runtime has no validators.
        """
        self._undone += 1
        if self._can_refuse and self._undone >= (_UNDONE_IN_A_ROW if self._worked else 1):
            self._undone = 0
            self._off_until = self._clock() + _OFF_S
            logs.warning("gate hook is off for a while", seconds=_OFF_S, reason=_TAKEN_BACK)

    # -- the self-test -----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Test where hook or interpreter changed since the last test. Cheap to call: two stats where they did not."""
        stamps = self._stamps()
        if stamps == self._tested and None not in stamps:
            return
        self._interpreter = interpreter(self.path)
        stamps = self._stamps()
        if stamps[0] is None:
            reason = f"the OCI hook is not installed at {self.path}"
        elif stamps[1] is None:
            reason = f"{self.path}: its interpreter {self._interpreter or 'line'} is missing"
        else:
            reason = await self._run()
        if reason != self.reason:
            logs.info("OCI hook tested", path=self.path, result=reason or "usable")
        self.reason, self._tested = reason, stamps

    def _stamps(self) -> tuple[Stamp | None, Stamp | None]:
        return _stamp(self.path), _stamp(self._interpreter)

    async def _run(self) -> str:
        """Twice against a socket that nobody serves: it must let go, and with --closed it must refuse and say so."""
        nowhere = f"{self._control_socket}.self-test"
        for closed, wanted in ((False, 0), (True, 1)):
            arguments = ("--socket", nowhere, "--deadline", "5", *(("--closed",) if closed else ()))
            try:
                code, out, err = await self._exec(arguments)
            except TimeoutError:
                return f"{self.path} did not end within {_TEST_S:g} s"
            except OSError as error:
                return f"{self.path} cannot be run: {error.strerror or error}"
            if code != wanted or out or bool(err) is not closed:
                said = (err or out).decode(errors="replace").strip()[-200:]
                return (
                    f"{self.path} failed its self-test (status {code}, {wanted} expected){': ' + said if said else ''}"
                )
        return ""

    async def _exec(self, arguments: tuple[str, ...]) -> tuple[int, bytes, bytes]:
        process = await asyncio.create_subprocess_exec(
            self.path,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/",
        )
        try:
            async with asyncio.timeout(_TEST_S):
                out, err = await process.communicate(_TEST_STATE)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, out, err


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size
