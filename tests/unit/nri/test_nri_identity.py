"""Who a plugin is: options, then the environment, then its file's name, then an error."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from nri_warmup.errors import ConfigError
from nri_warmup.nri.identity import Identity, find_identity
from nri_warmup.nri.logs import goes_nowhere, log_handler
from nri_warmup.nri.stub import inherited_socket

LAUNCHED = {"NRI_PLUGIN_NAME": "env", "NRI_PLUGIN_IDX": "20", "NRI_PLUGIN_SOCKET": "3"}


def test_options_come_first_and_the_variables_are_taken_away() -> None:
    environ = {**LAUNCHED, "PATH": "/bin"}
    found = find_identity(name="option", index="10", environ=environ, argv0="/opt/nri/plugins/30-file")
    assert found == Identity(name="option", index="10", launched_fd=3)
    assert environ == {"PATH": "/bin"}


def test_then_the_environment() -> None:
    found = find_identity(environ=dict(LAUNCHED), argv0="30-file")
    assert found == Identity(name="env", index="20", launched_fd=3)


def test_nri_0_3_puts_the_index_into_the_name() -> None:
    assert find_identity(environ={**LAUNCHED, "NRI_PLUGIN_NAME": "20-env"}).name == "env"


@pytest.mark.parametrize("argv0", ["/opt/nri/plugins/30-file", "30-file.py", "./30-file"])
def test_then_the_files_name(argv0: str) -> None:
    found = find_identity(environ={}, argv0=argv0, default_name="class", default_index="40")
    assert found == Identity(name="file", index="30")


def test_then_the_class() -> None:
    found = find_identity(environ={}, argv0="plugin.py", default_name="class", default_index="40")
    assert found == Identity(name="class", index="40")


@pytest.mark.parametrize(
    ("name", "index"), [("", "10"), ("x", ""), ("x", "1"), ("x", "100"), ("x", "ab"), ("a/b", "10"), ("x", "١٢")]
)
def test_then_an_error(name: str, index: str) -> None:
    with pytest.raises(ConfigError):
        find_identity(name=name, index=index, environ={}, argv0="python3")


def test_a_socket_that_is_none() -> None:
    with pytest.raises(ConfigError):
        find_identity(environ={**LAUNCHED, "NRI_PLUGIN_SOCKET": "three"})
    with open(os.devnull, "rb") as file, pytest.raises(ConfigError):
        inherited_socket(file.fileno())


def test_the_log_of_a_launched_plugin_reaches_syslog(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslog, open(os.devnull, "w") as null:
        syslog.bind(str(path))
        syslog.settimeout(30)
        handler = log_handler("10-test", stderr_fd=null.fileno(), sockets=("/nonexistent", str(path)))
        handler.handle(logging.LogRecord("n", logging.WARNING, "", 0, "hello %s", ("there",), None))
        handler.close()
        assert b"10-test" in (line := syslog.recv(1000)) and b"hello there" in line


def test_or_a_file_where_there_is_no_syslog(tmp_path: Path) -> None:
    with open(os.devnull, "w") as null:
        handler = log_handler(
            "10-test", stderr_fd=null.fileno(), sockets=(), directories=("/nonexistent", str(tmp_path))
        )
    handler.handle(logging.LogRecord("n", logging.WARNING, "", 0, "hello", (), None))
    handler.close()
    assert "hello" in (tmp_path / "10-test.log").read_text()


def test_stderr_is_used_where_somebody_reads_it(tmp_path: Path) -> None:
    with open(tmp_path / "err", "w") as file:
        assert not goes_nowhere(file.fileno())
        assert type(log_handler("n", stderr_fd=file.fileno())) is logging.StreamHandler
        number = file.fileno()
    assert goes_nowhere(number)
