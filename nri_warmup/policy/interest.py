"""Which events need not be decoded: byte strings that a payload must hold for a plan to be possible. Pure.

The result is a disjunction of conjunctions. Strings stand unbroken in a protobuf message, so a payload that holds none
of the conjunctions wholly can match no annotation and no selector. The reverse need not hold: what passes is decoded
and decided. Expressions that say what must *not* be there (NotIn, DoesNotExist) contribute nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_warmup.model.profile import Config, MatchExpression, Operator, Selector
from nri_warmup.policy.select import LABEL
from nri_warmup.request import DOMAIN

MAX_ALTERNATIVES = 64
"""Of one selector; an expression that would make more contributes nothing instead."""

Tokens = frozenset[bytes]


def interest_tokens(config: Config) -> tuple[frozenset[bytes], ...]:
    """The conjunctions for ``config``; ``(frozenset(),)`` where a selector can match anything at all."""
    found: list[Tokens] = [frozenset({DOMAIN.encode()})]
    for selector in config.selectors:
        found.extend(_selector_tokens(selector))
    return _minimal(found)


def _selector_tokens(selector: Selector) -> list[Tokens]:
    conjunctions: list[Tokens] = [frozenset()]
    alternatives = [_expression_tokens(expression) for expression in selector.match]
    if selector.containers:
        alternatives.append([_token_set(_literal(glob)) for glob in selector.containers])
    for choices in alternatives:
        choices = list(_minimal(choices))
        if len(conjunctions) * len(choices) <= MAX_ALTERNATIVES:
            conjunctions = [have | choice for have in conjunctions for choice in choices]
    return conjunctions


def _expression_tokens(expression: MatchExpression) -> list[Tokens]:
    """What must be there for the expression to hold, one set for each of its values."""
    key = expression.key[len(LABEL) :] if expression.key.startswith(LABEL) else ""
    match expression.operator:
        case Operator.IN:
            return [_token_set(key, value) for value in expression.values]
        case Operator.MATCHES:
            return [_token_set(key, _literal(glob)) for glob in expression.values]
        case Operator.EXISTS:
            return [_token_set(key)]
        case Operator.NOT_IN | Operator.DOES_NOT_EXIST:
            return [frozenset()]


def _token_set(*texts: str) -> Tokens:
    return frozenset(text.encode("utf-8", "surrogatepass") for text in texts if text)


def _literal(glob: str) -> str:
    """The longest piece of a shell glob that stands for itself. Whatever may be part of a ``[…]`` is left out."""
    first, last = glob.find("["), glob.rfind("]")
    parts = [glob] if first < 0 else [glob[:first], glob[last + 1 :] if last > first else ""]
    pieces = [piece for part in parts for star in part.split("*") for piece in star.split("?")]
    return max(pieces, key=len)


def _minimal(conjunctions: Iterable[Tokens]) -> tuple[Tokens, ...]:
    """Without duplicates, and without those that hold a smaller one: they can only match where it does."""
    kept: list[Tokens] = []
    for candidate in sorted(set(conjunctions), key=lambda tokens: (len(tokens), sorted(tokens))):
        if not any(smaller <= candidate for smaller in kept):
            kept.append(candidate)
    return tuple(kept)
