"""The deciding rooms stay pure: no operating system, clock, chance, log or third party, imported or called."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "nri_warmup"
PURE = sorted(
    [
        *(PACKAGE / f"{name}.py" for name in ("errors", "units", "fields", "config", "request", "oci")),
        *(PACKAGE / "model").glob("*.py"),
        *(PACKAGE / "policy").glob("*.py"),
    ]
)
ALLOWED_MODULES = frozenset(
    {
        "__future__",
        "bisect",
        "collections",
        "collections.abc",
        "dataclasses",
        "difflib",
        "enum",
        "errno",
        "fnmatch",
        "functools",
        "heapq",
        "itertools",
        "json",
        "math",
        "re",
        "typing",
    }
)
ALLOWED_ROOMS = ("errors", "units", "fields", "model", "config", "request", "oci", "policy")
FORBIDDEN_CALLS = frozenset({"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"})


def impurities(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [("." * node.level) + (node.module or "")]
        else:
            modules = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                found.append(f"line {node.lineno} calls {node.func.id}")
        for module in modules:
            room = module.removeprefix("nri_warmup.").split(".")[0]
            ours = module.startswith("nri_warmup.") and room in ALLOWED_ROOMS
            if not ours and module not in ALLOWED_MODULES:
                found.append(f"line {getattr(node, 'lineno', 0)} imports {module}")
    return found


def test_the_scan_covers_the_rooms() -> None:
    names = {path.relative_to(PACKAGE).as_posix() for path in PURE}
    assert {"config.py", "request.py", "oci.py", "policy/decide.py", "policy/interest.py", "model/plan.py"} <= names


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_pure(path: Path) -> None:
    assert impurities(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "import os.path",
        "from time import monotonic",
        "import logging",
        "import random",
        "import asyncio",
        "import yaml",
        "from nri_warmup.kernel import root",
        "from nri_warmup import kernel",
        "from . import x",
        "open('x')",
        "def f():\n    import socket",
    ],
)
def test_the_scan_finds_it(source: str) -> None:
    assert impurities(ast.parse(source))
