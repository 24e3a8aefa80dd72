"""The decision as data: what the runtime is asked to change, what we do ourselves, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nri_warmup.model.lifecycle import Mount, Pairs
from nri_warmup.model.profile import Gate, Mode, OnError, Residency


class ReasonKind(Enum):
    CHOSEN = "chosen"
    """Why something is done as it is."""
    CUT = "cut"
    """Asked for more than is allowed; reduced."""
    IGNORED = "ignored"
    """Asked for something that makes no sense; left out."""
    SKIPPED = "skipped"
    """Nothing is done for this container, or this part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    kind: ReasonKind
    code: str
    """A short stable word for metrics and tests: ``gate-not-allowed``, ``no-match``, ``sandboxed`` …"""
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One OCI hook entry (runtime-spec, config.md "POSIX-platform Hooks"). ``stage`` is ``createRuntime`` or so."""

    stage: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rlimit:
    type: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What is asked of the runtime at CreateContainer. Only what cannot fail the container."""

    annotations: Pairs = ()
    mounts: tuple[Mount, ...] = ()
    env: Pairs = ()
    hooks: tuple[Hook, ...] = ()
    rlimits: tuple[Rlimit, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == Adjustment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An undoable write of ours. Kinds of step come with the rooms that need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmAction:
    """Something to make warm. Kinds: WarmFiles now, more later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmFiles(WarmAction):
    """Read files into the page cache. ``max_bytes`` is the operator's ceiling; the budget is found when it runs."""

    patterns: tuple[str, ...]
    residency: Residency = Residency.INACTIVE
    max_bytes: int = 1 << 44
    max_files: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupPlan:
    """What to do for one container. ``profile`` None: nothing, and ``reasons`` say why."""

    profile: str | None = None
    gate: Gate = Gate.NONE
    deadline_s: float = 300.0
    hold_s: float = 30.0
    on_error: OnError = OnError.OPEN
    mode: Mode = Mode.ENFORCE
    reserve_bytes: int = 64 << 20
    adjustment: Adjustment = Adjustment()
    steps: tuple[Step, ...] = ()
    actions: tuple[WarmAction, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self.profile is None


EMPTY_PLAN = WarmupPlan()
