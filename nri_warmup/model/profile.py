"""What the operator declares: profiles, the selectors that pick them, and the limits no workload can pass."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Gate(Enum):
    """When the entrypoint may run: NONE warms beside it, HOOK holds it in an OCI hook, START inside StartContainer."""

    NONE = "none"
    HOOK = "hook"
    START = "start"


class Residency(Enum):
    """What the page cache shall look like afterwards: as without us (INACTIVE), on the active list, or locked."""

    INACTIVE = "inactive"
    ACTIVE = "active"
    HELD = "held"


class OnError(Enum):
    OPEN = "open"
    CLOSED = "closed"


class Mode(Enum):
    """ENFORCE does what the plan says, OBSERVE plans and measures and changes nothing."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Operator(Enum):
    """Match operators, with the meaning of a Kubernetes label selector; MATCHES takes shell globs."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    MATCHES = "Matches"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecProgram:
    """A warm-up program of the operator's, run inside the container as its own user before its entrypoint.

    ``path`` is a host file; with ``directory``, a host directory that holds it and comes along. ``cpus`` and ``nodes``
    bind it for its time; empty means where the container may run.
    """

    path: str
    directory: str = ""
    args: tuple[str, ...] = ()
    timeout_s: float = 10.0
    cpus: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    name: str
    files: tuple[str, ...] = ()
    """Absolute patterns in the container's own view; ``**`` crosses directories."""
    gate: Gate = Gate.NONE
    deadline_s: float = 300.0
    hold_s: float = 30.0
    residency: Residency = Residency.INACTIVE
    on_error: OnError = OnError.OPEN
    mode: Mode = Mode.ENFORCE
    max_bytes: int | None = None
    reserve_bytes: int = 64 << 20
    """Kept free below the container's memory limit."""
    exec: ExecProgram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchExpression:
    """``key`` is ``namespace``, ``container``, ``image``, ``runtime-handler`` or ``label:<key>`` of the pod."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """All expressions must hold. ``containers`` are globs on container names; empty: any that sees a wanted file."""

    profile: str
    match: tuple[MatchExpression, ...] = ()
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What annotations may ask for at most. What is beyond is cut, with a reason."""

    annotation_profiles: tuple[str, ...] | None = None
    """Profiles an annotation may name; None means all."""
    annotation_keys: frozenset[str] = frozenset({"profile", "files", "gate", "deadline", "residency", "max-bytes"})
    annotation_gates: frozenset[Gate] = frozenset({Gate.NONE, Gate.HOOK})
    annotation_residencies: frozenset[Residency] = frozenset({Residency.INACTIVE})
    max_bytes: int = 1 << 44
    max_deadline_s: float = 3600.0
    max_files: int = 10_000
    max_patterns: int = 64
    namespace_bytes: int | None = None
    """Bytes that warm-ups of one namespace may have read for containers alive now; None means no quota."""
    namespace_jobs: int = 2
    """Warm-ups of one namespace at one time; the others wait. Below ``jobs``: one tenant must not hold up all."""
    jobs: int = 4
    """Warm-ups on the host at one time. Of more than one, the last free is kept for a held entrypoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The host's own margins."""

    reserve_bytes: int = 512 << 20
    """Memory left available on the node, above kubelet's eviction threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole operator's file as a value."""

    profiles: tuple[Profile, ...] = ()
    selectors: tuple[Selector, ...] = ()
    limits: Limits = Limits()
    node: NodeLimits = NodeLimits()
    skip_namespaces: frozenset[str] = frozenset({"kube-system"})
    own_namespace: str = ""
    sandboxed_handlers: tuple[str, ...] = ("kata*", "gvisor*", "runsc*", "confidential*")
    source: str = "built-in defaults"

    def profile(self, name: str) -> Profile | None:
        for candidate in self.profiles:
            if candidate.name == name:
                return candidate
        return None
