"""Where the configuration in force comes from, and what a bad or missing file does to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_warmup.daemon.settings import Settings
from nri_warmup.errors import ConfigError
from nri_warmup.observe.metrics import Registry

GOOD = "profiles: {a: {files: [/x]}}\n"
OTHER = "profiles: {b: {files: [/x]}}\n"


def settings(path: Path, *, explicit: bool = True) -> Settings:
    return Settings(str(path), explicit=explicit, metrics=Registry())


def write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    os.replace(temporary, path)


def names(subject: Settings) -> list[str]:
    return [p.name for p in subject.config.profiles]


def test_a_named_file_must_exist_and_the_default_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        settings(tmp_path / "none")
    assert settings(tmp_path / "none", explicit=False).config.source == "built-in defaults"


def test_a_changed_file_is_read_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    write(path, GOOD)
    subject = settings(path)
    assert names(subject) == ["a"] and not subject.changed()
    write(path, OTHER)
    assert subject.changed() and subject.reload() is not None
    assert names(subject) == ["b"] and not subject.changed()
    write(path, "profiles: 3\n")
    assert subject.reload() is None
    assert names(subject) == ["b"] and "profiles" in subject.error
    write(path, GOOD)
    assert subject.reload() is not None and subject.error == ""


@pytest.mark.parametrize("explicit", [True, False])
def test_a_file_that_goes_away_keeps_what_was_read(tmp_path: Path, explicit: bool) -> None:
    path = tmp_path / "c.yaml"
    write(path, GOOD)
    subject = settings(path, explicit=explicit)
    path.unlink()
    assert subject.changed() and subject.reload() is None
    assert names(subject) == ["a"] and subject.error


def test_a_default_file_that_comes_later_is_read(tmp_path: Path) -> None:
    subject = settings(tmp_path / "c.yaml", explicit=False)
    write(tmp_path / "c.yaml", GOOD)
    assert subject.changed() and subject.reload() is not None
    assert names(subject) == ["a"]


def test_what_the_runtime_gave_is_not_replaced_by_a_reload(tmp_path: Path) -> None:
    subject = settings(tmp_path / "none", explicit=False)
    assert subject.from_runtime(OTHER) is not None
    assert subject.reload() is None and names(subject) == ["b"]
    assert subject.from_runtime("profiles: 3\n") is None
    assert names(subject) == ["b"] and subject.error


@pytest.mark.parametrize("text", ["a: !!bool foo", 'a: !!int ""', "a: !!timestamp x", "\x00", "profiles: {a: [1"])
def test_no_text_at_all_gets_past_a_reload_as_an_exception(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    write(path, GOOD)
    subject = settings(path)
    write(path, text)
    assert subject.reload() is None and names(subject) == ["a"]
