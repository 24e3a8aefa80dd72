"""Processes, id maps, namespaces and roots from trees in a folder; pidfds from a real child."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nri_warmup.errors import KernelError
from nri_warmup.kernel import namespaces, process
from nri_warmup.kernel.process import IdMap
from nri_warmup.kernel.root import Root


def test_stat_with_a_hostile_name() -> None:
    fields = " ".join(["0"] * 17)
    stat = process.parse_stat(f"12 (a) S (b) R 7 {fields[:-2]} 0 4242 99\n".replace("  ", " "))
    assert (stat.state, stat.parent) == ("R", 7)


def test_own_stat_is_read() -> None:
    stat = process.read_stat(Root(), os.getpid())
    assert stat.parent == os.getppid() and stat.start_ticks > 0
    assert process.read_start_ticks(Root(), os.getpid()) == stat.start_ticks


def test_ids(tmp_path: Path) -> None:
    (tmp_path / "proc/5").mkdir(parents=True)
    (tmp_path / "proc/5/status").write_text("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n")
    (tmp_path / "proc/5/uid_map").write_text("         0     100000      65536\n 70000 5 1\n")
    root = Root(tmp_path)
    assert process.read_ids(root, 5) == (2, 6)
    maps = process.read_id_map(root, 5, "uid")
    assert maps == (IdMap(inside=0, outside=100000, length=65536), IdMap(inside=70000, outside=5, length=1))
    assert [process.id_inside(maps, n) for n in (100000, 165535, 165536, 5, 0)] == [0, 65535, None, 70000, None]


def test_pidfd() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = process.pidfd_open(child.pid)
    try:
        assert process.is_alive(pidfd)
        child.communicate(b"\n")
        assert not process.is_alive(pidfd)
        with pytest.raises(KernelError) as caught:
            process.pidfd_open(child.pid)
        assert caught.value.errno == errno.ESRCH
    finally:
        os.close(pidfd)


def test_differing_namespaces(tmp_path: Path) -> None:
    for pid, mnt in (("self", "mnt:[1]"), ("9", "mnt:[2]")):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
        for name in namespaces.CLONE_FLAGS:
            (tmp_path / "proc" / pid / "ns" / name).symlink_to(mnt if name == "mnt" else f"{name}:[7]")
    assert namespaces.read_differing(Root(tmp_path), 9) == {"mnt"}
    assert namespaces.read_differing(Root(), os.getpid()) == frozenset()


def test_mount_points_unescaped(tmp_path: Path) -> None:
    (tmp_path / "proc/9").mkdir(parents=True)
    (tmp_path / "proc/9/mountinfo").write_text("1 0 8:1 / /a\\040b\\134c rw - ext4 x rw\n2 1 8:1 / / rw - ext4 x rw\n")
    assert namespaces.read_mount_points(Root(tmp_path), 9) == {"/a b\\c", "/"}


def test_root_reads_and_writes_below_itself(tmp_path: Path) -> None:
    root = Root(tmp_path)
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/knob").write_text("old")
    root.write_text("/sys/knob", "new")
    assert root.read_text("sys/knob") == "new"
    assert root.exists("sys/knob") and not root.exists("sys/other")
    assert root.list_directory("sys") == ("knob",)
    assert root.read_inode("sys/knob") == (tmp_path / "sys/knob").stat().st_ino
    for action in (
        lambda: root.read_text("sys/other"),
        lambda: root.write_text("sys/other", "x"),
        lambda: root.list_directory("sys/other"),
        lambda: root.read_link("sys/other"),
        lambda: root.read_inode("sys/other"),
    ):
        with pytest.raises(KernelError) as caught:
            action()
        assert caught.value.errno == errno.ENOENT
        assert caught.value.path == str(tmp_path / "sys/other")
    assert not (tmp_path / "sys/other").exists(), "an interface file is never created"
