"""``nri-warmup plan``, as a process: descriptions of a container in, plans and exit codes out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: llm-0
  namespace: prod
  labels: {app: llm}
  annotations:
    gate.nri-warmup.dev/container.server: hook
spec:
  runtimeClassName: nvidia
  volumes:
    - name: models
      emptyDir: {}
  initContainers:
    - name: copy
      image: busybox
  containers:
    - name: server
      image: quay.io/x/vllm:1
      volumeMounts:
        - {name: models, mountPath: /models}
    - name: proxy
      image: istio
"""
CONFIG = """\
profiles:
  - name: model
    files: [/models/**]
selectors:
  - profile: model
    matchLabels: {app: llm}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return str(path)


def plan(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nri_warmup.cli.main", "plan", *args]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def plans(*args: str, stdin: str = "") -> list[dict[str, Any]]:
    result = plan(*args, "--json", stdin=stdin)
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_manifest_gives_a_plan_for_each_container(config: str) -> None:
    found = plans("--config", config, "--pod", "-", "--hook", "/h", stdin=POD)
    assert [(p["namespace"], p["pod"], p["container"], p["profile"]) for p in found] == [
        ("prod", "llm-0", "copy", None),
        ("prod", "llm-0", "server", "model"),
        ("prod", "llm-0", "proxy", None),
    ]
    server = found[1]
    assert server["gate"] == "hook"
    assert server["adjustment"]["hooks"][0]["path"] == "/h"
    assert server["actions"][0]["patterns"] == ["/models/**"]


def test_text_explains(config: str) -> None:
    result = plan("--config", config, "--pod", "-", "--container-name", "proxy", stdin=POD)
    assert result.returncode == 0
    assert result.stdout.startswith(
        f"configuration: {config}\n\ncontainer proxy of pod prod/llm-0\nnothing would be done\n"
    )
    assert "[no-sight]" in result.stdout


def test_options_alone(config: str) -> None:
    args = ("--label", "app=llm", "--mount", "models:/models", "--container-name", "c", "--namespace", "n")
    (found,) = plans("--config", config, *args)
    assert (found["profile"], found["gate"], found["namespace"]) == ("model", "none", "n")
    (found,) = plans("--config", config, *args, "--runtime-handler", "kata")
    assert [reason["code"] for reason in found["reasons"]] == ["sandboxed"]
    (found,) = plans("--config", config, *args, "--annotation", "profile.nri-warmup.dev=")
    assert [reason["code"] for reason in found["reasons"]] == ["opt-out"]


def test_inline_json_and_files(config: str, tmp_path: Path) -> None:
    container = tmp_path / "container.json"
    container.write_text(json.dumps({"name": "server", "mounts": [{"destination": "/models", "source": "/x"}]}))
    (found,) = plans("--config", config, "--pod", '{"labels": {"app": "llm"}}', "--container", str(container))
    assert found["profile"] == "model"


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--label", "app"), "--label: 'app' is not KEY=VALUE"),
        (("--mount", "/models"), "--mount: '/models' is not SOURCE:DESTINATION"),
        (("--mount", "x:models"), "with an absolute destination"),
        (("--pod", "/nonexistent"), "--pod: [Errno 2] No such file"),
        (("--pod", "{"), "--pod: line 2: did not find"),
        (("--pod", '{"labels": []}'), "--pod: labels is not a map"),
        (("--pod", '{"labels": {"a": 1}}'), "--pod: labels is not a map of text to text"),
        (("--pod", '{"lables": {}}'), "--pod: unknown field 'lables'"),
        (("--pod", '{"name": 7}'), "--pod: name is not text"),
        (("--pod", '{"kind": "Pod"}'), "--pod: a manifest of kind Pod without metadata or spec"),
        (("--container", '{"mounts": [1]}'), "--container: mounts: each is a map"),
        (("--container", '{"mounts": {}, "name": []}'), "--container: name is not text"),
        (("--config", "/nonexistent"), "/nonexistent: No such file or directory"),
    ],
)
def test_usage(args: tuple[str, ...], complaint: str) -> None:
    result = plan(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_usage_of_a_manifest(config: str) -> None:
    result = plan("--config", config, "--pod", "-", "--container-name", "none", stdin=POD)
    assert (result.returncode, "it has copy, server, proxy" in result.stderr) == (2, True)
    result = plan("--config", config, "--pod", "-", "--container", "{}", stdin=POD)
    assert (result.returncode, "already holds its containers" in result.stderr) == (2, True)


def test_a_bad_configuration(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("profiles:\n  - name: a\n    gat: hook\n")
    result = plan("--config", str(path))
    assert result.returncode == 2
    assert f"{path}: line 2: profiles[0]: unknown key 'gat'; did you mean gate?" in result.stderr


def test_a_terminal_is_told_nothing_to_obey(config: str) -> None:
    pod = json.dumps(
        {"name": "\x1b[2Jx", "annotations": {"files.nri-warmup.dev": "/\u202ex", "gate.nri-warmup.dev": "\x1b"}}
    )
    result = plan("--config", config, "--pod", pod)
    assert result.returncode == 0
    assert all(line.isprintable() for line in result.stdout.splitlines())
