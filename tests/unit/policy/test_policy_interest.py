"""Which byte strings a selector waits for."""

from __future__ import annotations

from typing import Any

import pytest

from nri_warmup.config import default_config, load_config
from nri_warmup.policy.interest import MAX_ALTERNATIVES, interest_tokens

ANNOTATED = frozenset({b"nri-warmup.dev"})


def tokens(*selectors: dict[str, Any]) -> set[frozenset[bytes]]:
    config = load_config({"selectors": [{"profile": "model", **selector} for selector in selectors]}, source="t")
    found = interest_tokens(config)
    assert len(set(found)) == len(found)
    return set(found) - {ANNOTATED}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def conjunctions(*texts: tuple[bytes, ...]) -> set[frozenset[bytes]]:
    return {frozenset(text) for text in texts}


def test_without_selectors_only_annotations() -> None:
    assert interest_tokens(default_config()) == (ANNOTATED,)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"matchLabels": {"app": "llm", "x/y": "é"}}, [(b"app", b"llm", b"x/y", "é".encode())]),
        ({"matchLabels": {"app": ""}}, [(b"app",)]),
        (expression("label:app", "In", "a1", "b1"), [(b"app", b"a1"), (b"app", b"b1")]),
        (expression("label:app", "Exists"), [(b"app",)]),
        (expression("namespace", "In", "prod", "test"), [(b"prod",), (b"test",)]),
        (expression("image", "Matches", "quay.io/*/vllm-openai:?"), [(b"/vllm-openai:",)]),
        (expression("image", "Matches", "vllm[0-9]x-longer[ab]end"), [(b"vllm",)]),
        (expression("image", "Matches", "a]b[c"), [(b"a]b",)]),
        ({"containers": ["server-*", "main"]}, [(b"server-",), (b"main",)]),
        ({**expression("namespace", "In", "prod"), "containers": ["a", "b"]}, [(b"prod", b"a"), (b"prod", b"b")]),
    ],
)
def test_tokens(selector: dict[str, Any], expected: list[tuple[bytes, ...]]) -> None:
    assert tokens(selector) == conjunctions(*expected)


@pytest.mark.parametrize(
    "selector",
    [
        {},
        expression("namespace", "NotIn", "test"),
        expression("label:app", "DoesNotExist"),
        expression("image", "Matches", "*"),
        expression("image", "Matches", "vllm*", "*"),
        expression("image", "Exists"),
        {"containers": ["*"]},
    ],
)
def test_what_can_match_anything(selector: dict[str, Any]) -> None:
    config = load_config({"selectors": [{"profile": "model", **selector}]}, source="t")
    assert interest_tokens(config) == (frozenset(),)


def test_a_conjunction_within_another_stands_for_it() -> None:
    assert tokens({"matchLabels": {"app": "llm"}}, {"matchLabels": {"app": "llm", "tier": "gpu"}}) == conjunctions(
        (b"app", b"llm")
    )


def test_too_many_alternatives_contribute_nothing() -> None:
    many = [f"value-{index}" for index in range(MAX_ALTERNATIVES + 1)]
    selector = {"matchLabels": {"app": "llm"}, **expression("namespace", "In", *many)}
    assert tokens(selector) == conjunctions((b"app", b"llm"))
