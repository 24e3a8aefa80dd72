"""The verb table, usage errors, completion made from the parsers, and what a verb's import costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nri_warmup.cli import main as cli


def test_every_verb_loads_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in cli.VERBS:
        assert cli.main([verb, "--help"]) == cli.OK
        assert f"nri-warmup {verb}" in capsys.readouterr().out


def test_no_verb_is_a_usage_error_and_help_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == cli.USAGE
    assert cli.main(["--help"]) == cli.OK
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in cli.VERBS)
    assert cli.main(["help", "warm"]) == cli.OK
    assert cli.main(["--version"]) == cli.OK


def test_a_misspelt_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["staus"]) == cli.USAGE
    assert "did you mean 'status'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["warm", "/x", "--max-bytes", "2 gigs"], "--max-bytes: '2 gigs' is not a size"),
        (["warm", "/x", "--deadline", "90"], "is not a duration"),
        (["warm", "/x", "--pid", "1", "--cgroup", "/x"], "exclude each other"),
        (["exec"], "no command"),
        (["exec", "--label", "x", "--", "true"], "has no '='"),
        (["exec", "--config", "/does/not/exist", "--", "true"], "/does/not/exist"),
        (["run", "--metrics-tcp", "nowhere"], "is not HOST:PORT"),
        (["demo", "--rounds", "0"], "--rounds must be at least 1"),
        (["demo", "--size", "x"], "--size: 'x' is not a size"),
    ],
)
def test_usage_errors_name_the_option_and_exit_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == cli.USAGE
    assert words in capsys.readouterr().err


def test_status_without_a_daemon_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--control-socket", "/does/not/exist"]) == cli.FAILED
    assert "is the plugin running?" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_verb_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == cli.OK
    script = capsys.readouterr().out
    for verb in cli.VERBS:
        assert verb in script
    assert "nri-socket" in script and "max-bytes" in script


def test_the_bash_completion_completes() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "nri_warmup.cli.main", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    for words, wanted in (("nri-warmup st", "status"), ("nri-warmup warm --max", "--max-bytes")):
        last = len(words.split()) - 1
        probe = f'{script}\nCOMP_WORDS=({words}); COMP_CWORD={last}; _nri_warmup; echo "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [wanted]


def test_starting_imports_nothing_heavy() -> None:
    """The daemon's start-up path: no protobuf, no YAML, no gRPC before they are needed."""
    code = (
        "import sys, nri_warmup.cli.run, nri_warmup.daemon.service\n"
        "bad = {'yaml', 'google.protobuf', 'grpc', 'psutil', 'http.server'} & set(sys.modules)\n"
        "sys.exit(f'imported at start: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
