"""Runtimes' configuration files, read by way of a process tree in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_warmup.daemon.veto import read_hook_veto
from nri_warmup.kernel.root import Root

REJECT = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = true\nreject_oci_hook_adjustment = true\n"


class Host:
    """A host with some processes and files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "proc" / "self" / "ns").mkdir(parents=True)
        (path / "proc" / "self" / "ns" / "mnt").symlink_to("mnt:[1]")

    def process(self, pid: int, comm: str, *command: str, files: dict[str, str] | None = None) -> None:
        directory = self.path / "proc" / str(pid)
        (directory / "ns").mkdir(parents=True)
        (directory / "ns" / "mnt").symlink_to("mnt:[1]")
        (directory / "comm").write_text(f"{comm}\n")
        (directory / "cmdline").write_text("\0".join(command) + "\0")
        for name, text in (files or {}).items():
            self.write(self.path, name, text)

    def write(self, root: Path, name: str, text: str) -> None:
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def veto(self, runtime: str = "containerd", pid: int = 7) -> str:
        return read_hook_veto(Root(self.path), runtime, pid)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def test_default_file_of_the_running_containerd(host: Host) -> None:
    host.process(7, "containerd", "/usr/bin/containerd", files={"/etc/containerd/config.toml": REJECT})
    assert "/etc/containerd/config.toml" in host.veto()


@pytest.mark.parametrize("command", [("-c", "/c.toml"), ("--config", "/c.toml"), ("--config=/c.toml",)])
def test_file_of_the_command_line_and_not_the_default_one(host: Host, command: tuple[str, ...]) -> None:
    host.process(7, "containerd", "containerd", *command, files={"/c.toml": REJECT})
    assert "/c.toml" in host.veto()
    host.write(host.path, "/c.toml", "")
    host.write(host.path, "/etc/containerd/config.toml", REJECT)
    assert host.veto() == ""


def test_validator_that_is_not_enabled_forbids_nothing(host: Host) -> None:
    text = REJECT.replace("enable = true", "enable = false")
    host.process(7, "containerd", "containerd", files={"/etc/containerd/config.toml": text})
    assert host.veto() == ""


def test_imports_are_followed_and_the_last_word_counts(host: Host) -> None:
    files = {
        "/etc/containerd/config.toml": f'imports = ["conf.d/*.toml", "/x/more.toml"]\n{REJECT}',
        "/etc/containerd/conf.d/10.toml": "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nenable = false\n",
        "/x/more.toml": 'imports = ["/etc/containerd/config.toml"]\n',
    }
    host.process(7, "containerd", "containerd", files=files)
    assert host.veto() == ""
    host.write(host.path, "/x/more.toml", REJECT)
    assert "/x/more.toml" in host.veto()


def test_only_the_process_at_the_other_end_of_the_socket_is_looked_at(host: Host) -> None:
    """A tenant's process may call itself containerd and name whatever it likes."""
    host.process(7, "containerd", "containerd", "-c", "/real", files={"/real": ""})
    host.process(6, "containerd", "containerd", "-c", "/planted", files={"/planted": REJECT})
    assert host.veto(pid=7) == ""
    assert "/planted" in host.veto(pid=6)


def test_a_runtime_in_another_mount_namespace_is_not_looked_into(host: Host) -> None:
    host.process(7, "containerd", "containerd", files={"/etc/containerd/config.toml": REJECT})
    link = host.path / "proc/7/ns/mnt"
    link.unlink()
    link.symlink_to("mnt:[2]")
    assert host.veto() == ""


def test_what_is_no_regular_file_of_root_is_not_waited_for(host: Host) -> None:
    host.process(7, "containerd", "containerd", "-c", "/fifo")
    os.mkfifo(host.path / "fifo")
    assert host.veto() == ""
    host.write(host.path, "/c", REJECT)
    os.chown(host.path / "c", 1000, 1000)
    host.process(8, "containerd", "containerd", "-c", "/c")
    assert host.veto(pid=8) == ""
    host.process(9, "containerd", "containerd", "-c", "/big", files={"/big": REJECT + "#" * (2 << 20)})
    assert host.veto(pid=9) == ""


def test_crio_reads_a_directory_of_drop_ins(host: Host) -> None:
    table = "[crio.nri.default_validator]\n"
    reject = f"{table}nri_enable_default_validator = true\nnri_validator_reject_oci_hook_adjustment = true\n"
    files = {"/etc/crio/crio.conf": reject, "/etc/crio/crio.conf.d/10.conf": ""}
    host.process(7, "crio", "/usr/bin/crio", files=files)
    assert "/etc/crio/crio.conf" in host.veto("cri-o")
    drop_in = host.path / "etc/crio/crio.conf.d/20.conf"
    drop_in.write_text(f"{table}nri_validator_reject_oci_hook_adjustment = false\n")
    assert host.veto("cri-o") == ""


def test_crio_without_a_directory(host: Host) -> None:
    table = "[crio.nri.default_validator]\nnri_enable_default_validator = true\n"
    files = {
        "/f": "",
        "/etc/crio/crio.conf.d/1.conf": f"{table}nri_validator_reject_oci_hook_adjustment = true\n",
    }
    host.process(7, "crio", "crio", "-c", "/f", "-d", "", files=files)
    assert host.veto("cri-o") == ""


def test_without_a_process_the_default_file_as_we_see_it(host: Host) -> None:
    assert host.veto(pid=0) == ""
    host.write(host.path, "/etc/containerd/config.toml", REJECT)
    assert "reject_oci_hook_adjustment" in host.veto(pid=0)


@pytest.mark.parametrize(
    "text", ["not toml [", "plugins = 3", "[plugins]\n'io.containerd.nri.v1.nri' = []", "imports = 7"]
)
def test_what_cannot_be_understood_forbids_nothing(host: Host, text: str) -> None:
    host.process(7, "containerd", "containerd", files={"/etc/containerd/config.toml": text})
    assert host.veto() == ""
    assert host.veto("another-runtime") == ""
