"""The hook's byte scanner gives what json gives, for every JSON object, and never fails on anything else."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hooks.conftest import HOOK


def load_hook() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("nri_warmup_hook", str(HOOK))
    spec = importlib.util.spec_from_loader("nri_warmup_hook", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


hook = load_hook()
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(st.dictionaries(st.text(), values), st.sampled_from([None, 0, 2]), st.booleans())
def test_own_members_as_json_gives_them(message: dict[str, object], indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(message, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    found = hook.find_members(text)
    expected = {k: v for k, v in message.items() if not isinstance(v, list | dict)}
    decoded = {json.loads(b'"' + key + b'"'): json.loads(value) for key, value in found.items()}
    assert decoded == expected


@given(st.binary())
def test_anything_else_is_survived(text: bytes) -> None:
    hook.find_members(text)


@given(st.text(alphabet='"\\{}[]:, a1'))
def test_anything_like_json_is_survived(text: str) -> None:
    hook.find_members(text.encode())
