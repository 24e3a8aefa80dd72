"""The file on disk: what is refused before a value is made of it, and that a complaint names the line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_warmup.config import default_config
from nri_warmup.daemon import configfile
from nri_warmup.daemon.configfile import parse_config, parse_document, read_config
from nri_warmup.errors import ConfigError

GOOD = "# ours\nprofiles:\n  - name: model\n    files: [/models/**]\n"


def bomb(levels: int) -> str:
    lines = ["l0: &l0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    lines = ["- &l0 {a: 1}"]
    lines += [f"- &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 10)}], b{n}: 1}}" for n in range(1, levels)]
    return "\n".join(lines)


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    config = read_config(str(path))
    assert config.source == str(path)
    assert config.profiles[0].files == ("/models/**",)


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "---\n", "null\n", "{}"])
def test_an_empty_file_gives_the_defaults(text: str) -> None:
    assert parse_config(text, source=default_config().source) == default_config()


def test_json_is_yaml() -> None:
    assert parse_config('{"profiles": [{"name": "a"}]}', source="x").profiles[0].name == "a"


def test_anchors_and_merges_within_reason() -> None:
    text = "profiles:\n  a: &base {files: [/x], deadline: 1s}\n  b: {<<: *base, deadline: 2s}\n"
    config = parse_config(text, source="x")
    assert [(p.files, p.deadline_s) for p in config.profiles] == [(("/x",), 1.0), (("/x",), 2.0)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("profiles:\n  - name: a\n    gat: hook\n", "c: line 2: profiles[0]: unknown key 'gat'; did you mean gate?"),
        ("profiles:\n  - name: a\n    gate: hok\n", "c: line 3: profiles[0].gate: 'hok' is not one of"),
        ("profiles:\n  a:\n    deadline: 30\n", "c: line 3: profiles.a.deadline: the number 30"),
        ("limits:\n\n  jobs: 0\n", "c: line 3: limits.jobs: the number 0"),
        ("skip_namespaces:\n  - a\n  - yes\n", "c: line 3: skip_namespaces[1]: the boolean true (quote it"),
        ("own_namespace: 2020-01-01\n", "c: line 1: own_namespace: a date (quote it"),
        ("own_namespace: 1_000\n", "c: line 1: own_namespace: the number 1000"),
        ("selectors:\n  - profile: x\n", "c: line 2: selectors[0].profile: there is no profile 'x'"),
        ("jobs: 1\n", "c: unknown key 'jobs'"),
        ("- a\n", "c: a list where a map with"),
        ("limits:\n  jobs: 1\n  jobs: 2\n", "c: line 3: 'jobs' is given twice"),
        ("limits: {jobs: 1}\nlimits: {}\n", "c: line 2: 'limits' is given twice"),
        ("? [a]\n: b\n", "c: line 1: a key must be text"),
        ("a: b: c\n", "c: line 1: mapping values are not allowed"),
        ("limits:\n\tjobs: 1\n", "c: line 2: found character that cannot start any token"),
        ("a: *nowhere\n", "c: line 1: found undefined alias"),
        ("a: !!python/object/apply:os.system ['true']\n", "c: line 1: a value with the tag"),
        ("a: !!bool foo\n", "c: "),
        ('a: !!int ""\n', "c: "),
        ('a: !!float ""\n', "c: "),
        ("a: !!timestamp x\n", "c: "),
        ("a: !mine x\n", "c: line 1: a value with the tag"),
        ("a: 1\n---\nb: 2\n", "c: line 2: but found another document"),
        ("a: \x01\n", "c: "),
        ("&a [*a]\n", "c: line 1: nested more than 24 deep, or in itself"),
        ("[" * 60 + "]" * 60, "c: line 1: nested more than 24 deep"),
        (bomb(6), "c: more than 50000 values, aliases counted"),
        (merge_bomb(8), "c: more than 50000 values, aliases counted"),
        ("a: " + "x" * configfile.MAX_BYTES, "c: larger than 1048576 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_complaint(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="c")
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 5_000, "[" * 500_000, "- " * 500_000, '{"a":' * 100_000])
def test_deep_text_does_not_end_the_process(text: str) -> None:
    with pytest.raises(ConfigError, match=r"nest|depth"):
        parse_document(text, source="c")


def test_files_that_are_none(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file or directory"):
        read_config(str(missing))
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config(str(tmp_path))
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(os.devnull)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 3"):
        read_config(str(binary))
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (configfile.MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        read_config(str(large))


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "fifo.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(str(path))
