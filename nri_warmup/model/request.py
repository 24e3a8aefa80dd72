"""What the workload's author asked for in annotations, parsed; policy cuts it to the operator's limits."""

from __future__ import annotations

from dataclasses import dataclass

from nri_warmup.model.profile import Gate, Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One annotation that could not be used: ``place`` as ``files.nri-warmup.dev (container server)``."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRequest:
    """Every field None where nothing was asked. ``opt_out`` is an empty profile annotation."""

    profile: str | None = None
    files: tuple[str, ...] | None = None
    gate: Gate | None = None
    deadline_s: float | None = None
    residency: Residency | None = None
    max_bytes: int | None = None
    opt_out: bool = False
    named: bool = False
    """At least one annotation is addressed to this container by name, not to the pod as a whole."""
    complaints: tuple[Complaint, ...] = ()

    @property
    def is_empty(self) -> bool:
        return self == WarmupRequest(complaints=self.complaints, named=self.named)
