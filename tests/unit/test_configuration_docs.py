"""docs/configuration.md describes every key, annotation and reason code, and the example that is installed loads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from nri_warmup import config as loader
from nri_warmup.daemon.configfile import read_config
from nri_warmup.model.plan import ReasonKind
from nri_warmup.model.profile import Config, Limits, NodeLimits, Profile
from nri_warmup.request import PLANNED
from nri_warmup.units import parse_duration, parse_size

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "configuration.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next heading of its level or above."""
    match = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1? ?#{{1,2}} |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert match, title
    return re.split(r"^#{2,3} ", match[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, list[str]]:
    """First cell without its backticks -> the other cells, of every table in ``text``."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| `"):
            found[cells[0].strip("`")] = cells[1:]
    return found


@pytest.mark.parametrize(
    ("title", "keys"),
    [
        ("`profiles`", loader._PROFILE),
        ("`selectors`", (*loader._SELECTOR, *loader._EXPRESSION)),
        ("`limits`", loader._LIMITS),
        ("The rest", (*loader._TOP[3:], *(f"node.{key}" for key in loader._NODE))),
    ],
)
def test_every_key_is_described(title: str, keys: tuple[str, ...]) -> None:
    assert set(rows(section(title))) == set(keys)


def test_top_level_sections_have_a_heading_or_a_row() -> None:
    assert [key for key in loader._TOP if f"### `{key}`" not in TEXT and key not in rows(section("The rest"))] == []


def default(table: str, key: str) -> str:
    match = re.search(r"`([^`]+)`", rows(section(table))[key][0])
    assert match, (table, key)
    return match[1]


def test_the_defaults_that_are_told_are_the_defaults() -> None:
    profile, limits = Profile(name="x"), Limits()
    told = {
        key: default("`profiles`", key)
        for key in ("gate", "residency", "on_error", "mode", "deadline", "hold", "reserve")
    }
    assert told["gate"] == profile.gate.value
    assert told["residency"] == profile.residency.value
    assert told["on_error"] == profile.on_error.value
    assert told["mode"] == profile.mode.value
    assert parse_duration(told["deadline"]) == profile.deadline_s
    assert parse_duration(told["hold"]) == profile.hold_s
    assert parse_size(told["reserve"]) == profile.reserve_bytes
    assert parse_size(default("`limits`", "max_bytes")) == limits.max_bytes
    assert parse_duration(default("`limits`", "max_deadline")) == limits.max_deadline_s
    for key in ("max_files", "max_patterns", "namespace_jobs", "jobs"):
        assert int(default("`limits`", key)) == getattr(limits, key)
    assert parse_size(default("The rest", "node.reserve")) == NodeLimits().reserve_bytes
    assert {default("The rest", "skip_namespaces")} == Config().skip_namespaces
    handlers = rows(section("The rest"))["sandboxed_handlers"][0]
    assert tuple(re.findall(r"`([^`]+)`", handlers)) == Config().sandboxed_handlers


def test_every_annotation_is_described() -> None:
    assert set(rows(section("Annotations"))) == {f"{key}.nri-warmup.dev" for key in loader.ANNOTATION_KEYS}
    assert f"`{PLANNED}`" in TEXT


def codes_in_policy() -> set[tuple[str, str]]:
    """(kind, code) of every Reason that policy can give, read from its source."""
    found = set()
    for path in (ROOT / "nri_warmup" / "policy").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            for at, argument in enumerate(node.args):
                if isinstance(argument, ast.Attribute) and ast.unparse(argument).startswith("ReasonKind."):
                    code = node.args[at + 1]
                    found |= {(ReasonKind[argument.attr].value, value) for value in literals(code, path)}
    return found


def literals(node: ast.expr, path: Path) -> set[str]:
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    # warmset's ceilings: the code is the first of each tuple in a list
    return set(re.findall(r'\("([a-z]+-cut)", "limits\.', path.read_text()))


def test_every_reason_code_is_described() -> None:
    table = {}
    for line in section("Reasons").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[1].startswith("`"):
            table[cells[1].strip("`")] = set(re.findall(r"`([a-z-]+)`", cells[3])) - {"plan"}
    assert len(codes_in_policy()) > 30
    assert {(kind, code) for kind, codes in table.items() for code in codes} == codes_in_policy()


def test_the_installed_example_loads() -> None:
    config = read_config(str(ROOT / "packaging" / "config.yaml"))
    assert {profile.name for profile in config.profiles} >= {"model", "model-held"}
    assert config.selectors


def test_what_is_commented_out_in_the_example_loads_too(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=  )", "", (ROOT / "packaging" / "config.yaml").read_text(), flags=re.MULTILINE)
    path = tmp_path / "config.yaml"
    path.write_text(text)
    config = read_config(str(path))
    assert len(config.selectors) == 2
    assert config.limits.namespace_bytes == 512 << 30
