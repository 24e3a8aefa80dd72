"""config.schema.json is valid, closed, described, and says the same as the loader for every hand-written case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import nri_warmup
from nri_warmup import config as loader
from tests.unit.test_config import BAD, WHOLE

SCHEMA: dict[str, Any] = json.loads((Path(nri_warmup.__file__).parent / "config.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
BEYOND_A_SCHEMA = (
    "there is no profile",
    "was declared before",
    "is larger than 8Ei",
    "is not below directory",
    "is not a range of cpus",
    "zero bytes would",
    "no time at all",
)
"""Complaints of the loader that the schema cannot or need not make; docs/configuration.md lists them."""


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema and "type" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_object_is_closed_and_every_key_described() -> None:
    found = list(objects(SCHEMA))
    assert len(found) >= 6
    for schema in found:
        assert schema["additionalProperties"] is False
        for key, value in schema["properties"].items():
            assert value.get("description"), key


def test_the_schema_knows_the_keys_of_the_loader() -> None:
    top = SCHEMA["properties"]
    listed, by_name = top["profiles"]["oneOf"][1:]
    assert tuple(top) == loader._TOP
    assert tuple(listed["items"]["properties"]) == loader._PROFILE
    assert tuple(by_name["additionalProperties"]["properties"]) == loader._PROFILE[1:]
    assert tuple(SCHEMA["$defs"]["selector"]["properties"]) == loader._SELECTOR
    assert tuple(SCHEMA["$defs"]["expression"]["properties"]) == loader._EXPRESSION
    assert tuple(top["limits"]["properties"]) == loader._LIMITS
    assert tuple(top["node"]["properties"]) == loader._NODE
    assert tuple(top["limits"]["properties"]["annotation_keys"]["items"]["enum"]) == loader.ANNOTATION_KEYS


@pytest.mark.parametrize("value", [None, {}, WHOLE, {"profiles": {"a": None, "b": {"gate": "start"}}}], ids=str)
def test_what_loads_is_valid(value: object) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(value)] == []


@pytest.mark.parametrize(("value", "complaint"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_what_is_refused_is_invalid(value: object, complaint: str) -> None:
    beyond = any(text in complaint for text in BEYOND_A_SCHEMA[:5])
    # JSON has no keys but text: the loader alone meets others
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return
    assert VALIDATOR.is_valid(value) is beyond
