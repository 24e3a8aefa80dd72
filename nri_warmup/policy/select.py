"""Whether a selector matches a container: match expressions with the meaning of a Kubernetes label selector. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase

from nri_warmup.model.lifecycle import Container, Pod, lookup
from nri_warmup.model.profile import MatchExpression, Operator, Selector

LABEL = "label:"


def read_key(key: str, pod: Pod, container: Container) -> str | None:
    """The value that a match expression looks at; None where there is none (an absent label, an unknown image)."""
    if key.startswith(LABEL):
        return lookup(pod.labels, key[len(LABEL) :])
    fields = {
        "namespace": pod.namespace,
        "container": container.name,
        "image": container.image,
        "runtime-handler": pod.runtime_handler,
    }
    return fields[key] or None


def holds(expression: MatchExpression, value: str | None) -> bool:
    """As in Kubernetes: an absent value satisfies NotIn and DoesNotExist and nothing else."""
    match expression.operator:
        case Operator.IN:
            return value is not None and value in expression.values
        case Operator.NOT_IN:
            return value is None or value not in expression.values
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
        case Operator.MATCHES:
            return value is not None and matches_any(value, expression.values)


def matches_any(value: str, globs: tuple[str, ...]) -> bool:
    """Shell globs of the whole value, in which ``*`` also crosses a slash."""
    return any(fnmatchcase(value, glob) for glob in globs)


def names_container(selector: Selector) -> bool:
    """The selector itself says which container of the pod is meant, so nothing has to be guessed from mounts."""
    return bool(selector.containers) or any(
        expression.key in ("container", "image") and expression.operator in (Operator.IN, Operator.MATCHES)
        for expression in selector.match
    )


def mismatch(selector: Selector, pod: Pod, container: Container) -> str | None:
    """None where the selector matches, else the first thing that does not hold, in words."""
    for expression in selector.match:
        value = read_key(expression.key, pod, container)
        if not holds(expression, value):
            found = "absent" if value is None else repr(value[:200])
            wanted = f" [{', '.join(expression.values)}]" if expression.values else ""
            return f"{expression.key} is {found}, wanted {expression.operator.value}{wanted}"
    if selector.containers and not matches_any(container.name, selector.containers):
        return f"container is {container.name[:200]!r}, wanted one of [{', '.join(selector.containers)}]"
    return None
