"""What docs/nri-stub.md shows is true of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from nri_warmup.nri.events import Event
from nri_warmup.nri.stub import Plugin

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/nri-stub.md").read_text()


def test_the_code_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(code, "docs/nri-stub.md", "exec"), names)
    greeter = names["Greeter"]
    assert isinstance(greeter, type) and issubclass(greeter, Plugin)
    assert greeter().events() == {Event.CREATE_CONTAINER}


def test_every_event_has_its_line_and_every_name_exists() -> None:
    table = {name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert table == {event.handler_name for event in Event} | {"configure"}
    for name in table:
        assert callable(getattr(Plugin, name))


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def test_the_stub_brings_nothing_of_the_warm_up_and_loads_protobuf_late() -> None:
    script = (
        "import sys, nri_warmup.nri.stub\n"
        "print([n for n in sys.modules if n.startswith('google.') or n.partition('.')[2].partition('.')[0] in "
        "('model', 'policy', 'daemon', 'kernel', 'inject', 'config') and n.startswith('nri_warmup.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
