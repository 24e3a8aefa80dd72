"""Which patterns to warm, within which ceilings, and whether a container can see a wanted file at all. Pure.

Sight is judged by mounts, for before the container exists nothing else is known: a model in a volume is seen by the
containers that mount the volume. A model inside the image shows in no mount, so a selector that is meant for one has to
name its container (``containers:``, or an expression on ``container`` or ``image``).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from nri_warmup.model.lifecycle import Mount
from nri_warmup.model.node import NodeState
from nri_warmup.model.plan import Reason, ReasonKind, WarmFiles
from nri_warmup.model.profile import Limits, Profile, Residency
from nri_warmup.model.request import WarmupRequest
from nri_warmup.units import render_size

_BELOW_SYSTEM_DIRECTORIES = ("/proc/", "/sys/", "/dev/")
_SYSTEM_MOUNTS = frozenset(
    {
        "/",
        "/proc",
        "/sys",
        "/dev",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/run/.containerenv",
        "/run/secrets",
        "/run/secrets/kubernetes.io/serviceaccount",
        "/var/run/secrets/kubernetes.io/serviceaccount",
    }
)
_GLOB = frozenset("*?[")
_SYSTEM_TYPES = frozenset({"proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "devtmpfs", "tmpfs"})


def is_system_mount(mount: Mount) -> bool:
    """Mounts that every container has, and those that hold no files of a disk."""
    return (
        mount.destination in _SYSTEM_MOUNTS
        or mount.type in _SYSTEM_TYPES
        or mount.destination.startswith(_BELOW_SYSTEM_DIRECTORIES)
    )


def sight(patterns: Sequence[str], mounts: Sequence[Mount]) -> tuple[str, str] | None:
    """The first (pattern, mount destination) such that a file below the mount can match, or None."""
    wanted = [(pattern, _components(pattern)) for pattern in patterns]
    for mount in mounts:
        if is_system_mount(mount):
            continue
        destination = _components(mount.destination)
        for pattern, components in wanted:
            if _may_begin(components, destination) and _reaches(components, destination):
                return pattern, mount.destination
    return None


def _may_begin(pattern: tuple[str, ...], destination: tuple[str, ...]) -> bool:
    """False where the first component alone says no: most mounts, and this is asked for each at every creation."""
    if not pattern or not destination or pattern[0] == destination[0]:
        return True
    return not _GLOB.isdisjoint(pattern[0])


def _components(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part and part != ".")


def _reaches(pattern: tuple[str, ...], destination: tuple[str, ...]) -> bool:
    """Whether a path at or below ``destination`` can match ``pattern``; ``**`` is any number of directories.

    ``live`` holds the positions in the pattern that can be reached after the components seen so far.
    """
    live = _skip_stars(pattern, {0})
    for name in destination:
        following: set[int] = set()
        for position in live:
            if position < len(pattern):
                if pattern[position] == "**":
                    following.add(position)
                elif fnmatchcase(name, pattern[position]):
                    following.add(position + 1)
        live = _skip_stars(pattern, following)
    return bool(live)


def _skip_stars(pattern: tuple[str, ...], positions: set[int]) -> set[int]:
    """``**`` may stand for nothing."""
    for position in sorted(positions):
        while position < len(pattern) and pattern[position] == "**":
            position += 1
            positions.add(position)
    return positions


def warm_files(
    profile: Profile, request: WarmupRequest, limits: Limits, node: NodeState, reasons: list[Reason]
) -> WarmFiles | None:
    """The action, its patterns and ceilings cut to the limits; None (and a reason) where no pattern is left."""
    asked = request.files
    patterns = profile.files if asked is None else asked
    if asked is not None:
        reasons.append(_reason(ReasonKind.CHOSEN, "files-asked", f"{_count(len(asked))} by annotation"))
    elif patterns:
        reasons.append(
            _reason(ReasonKind.CHOSEN, "files-profile", f"{_count(len(patterns))} of profile {profile.name}")
        )
    if not patterns:
        text = f"profile {profile.name} names no files and no annotation does"
        reasons.append(_reason(ReasonKind.SKIPPED, "no-files", text))
        return None
    if len(patterns) > limits.max_patterns:
        text = f"{len(patterns)} patterns; the first {limits.max_patterns} are used (limits.max_patterns)"
        reasons.append(_reason(ReasonKind.CUT, "patterns-cut", text))
        patterns = patterns[: limits.max_patterns]
    return WarmFiles(
        patterns=patterns,
        residency=_residency(profile, request, limits, node, reasons),
        max_bytes=_max_bytes(profile, request, limits, reasons),
        max_files=limits.max_files,
    )


def _residency(
    profile: Profile, request: WarmupRequest, limits: Limits, node: NodeState, reasons: list[Reason]
) -> Residency:
    wanted = profile.residency
    asked = request.residency
    if asked is not None and asked is not wanted:
        if asked in limits.annotation_residencies:
            reasons.append(_reason(ReasonKind.CHOSEN, "residency-asked", f"residency {asked.value} by annotation"))
            wanted = asked
        else:
            text = (
                f"residency {asked.value} is not an annotation's to choose (limits.annotation_residencies); "
                f"{wanted.value} instead"
            )
            reasons.append(_reason(ReasonKind.CUT, "residency-not-allowed", text))
    if wanted is Residency.HELD and not node.can_hold:
        text = "residency held: nothing on this host locks pages; inactive instead"
        reasons.append(_reason(ReasonKind.SKIPPED, "held-unavailable", text))
        return Residency.INACTIVE
    return wanted


def _max_bytes(profile: Profile, request: WarmupRequest, limits: Limits, reasons: list[Reason]) -> int:
    wanted, origin = limits.max_bytes, ""
    if request.max_bytes is not None:
        wanted, origin = request.max_bytes, "the annotation"
    elif profile.max_bytes is not None:
        wanted, origin = profile.max_bytes, f"profile {profile.name}"
    if origin:
        reasons.append(_reason(ReasonKind.CHOSEN, "max-bytes", f"at most {render_size(wanted)}, says {origin}"))
    ceilings = [("bytes-cut", "limits.max_bytes", limits.max_bytes)]
    if limits.namespace_bytes is not None:
        ceilings.append(("quota-cut", "limits.namespace_bytes", limits.namespace_bytes))
    for code, name, ceiling in ceilings:
        if wanted > ceiling:
            text = f"{render_size(wanted)} is more than {name}; at most {render_size(ceiling)}"
            reasons.append(_reason(ReasonKind.CUT, code, text))
            wanted = ceiling
    return wanted


def _reason(kind: ReasonKind, code: str, text: str) -> Reason:
    return Reason(kind=kind, code=code, text=text)


def _count(n: int) -> str:
    return f"{n} pattern" if n == 1 else f"{n} patterns"
