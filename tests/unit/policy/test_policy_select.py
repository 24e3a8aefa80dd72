"""Match expressions, as Kubernetes means them."""

from __future__ import annotations

import pytest

from nri_warmup.model.lifecycle import Container, Pod
from nri_warmup.model.profile import MatchExpression, Operator
from nri_warmup.policy.select import holds, matches_any, read_key


@pytest.mark.parametrize(
    ("operator", "values", "present", "other", "absent"),
    [
        (Operator.IN, ("a", "b"), True, False, False),
        (Operator.NOT_IN, ("a",), False, True, True),
        (Operator.EXISTS, (), True, True, False),
        (Operator.DOES_NOT_EXIST, (), False, False, True),
        (Operator.MATCHES, ("[ab]",), True, False, False),
    ],
)
def test_operators(operator: Operator, values: tuple[str, ...], present: bool, other: bool, absent: bool) -> None:
    expression = MatchExpression(key="label:x", operator=operator, values=values)
    assert [holds(expression, value) for value in ("a", "c", None)] == [present, other, absent]


def test_keys() -> None:
    pod = Pod(id="p", namespace="ns", runtime_handler="h", labels=(("app", ""), ("x/y", "z")))
    container = Container(id="c", name="n", image="i")
    keys = ("namespace", "container", "image", "runtime-handler", "label:x/y", "label:app", "label:none")
    assert [read_key(key, pod, container) for key in keys] == ["ns", "n", "i", "h", "z", "", None]
    assert read_key("image", pod, Container(id="c")) is None


def test_globs_cross_slashes_and_mind_case() -> None:
    assert matches_any("quay.io/team/vllm:1", ("*/vllm:*",))
    assert not matches_any("Server", ("server",))
    assert not matches_any("server", ())
