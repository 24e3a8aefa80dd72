"""Fixtures of the tests on this machine's real kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.kernel import syscalls
from tests.kernel.containers import MIB, MemoryCgroup, memory_cgroup, memory_parent

TMPFS_MAGIC = 0x01021994


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: namespaces, cgroups and page owners")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a real file system (on tmpfs everything is always resident), open to the users of a user
    namespace."""
    for parent in (tempfile.gettempdir(), "/var/tmp"):
        fd = os.open(parent, os.O_PATH)
        try:
            if syscalls.fstatfs_type(fd) == TMPFS_MAGIC:
                continue
        finally:
            os.close(fd)
        with tempfile.TemporaryDirectory(prefix="nri-warmup-test-", dir=parent) as folder:
            os.chmod(folder, 0o755)
            yield Path(folder)
        return
    pytest.skip("the temporary directories are on tmpfs; set TMPDIR to one on a disk")


@pytest.fixture
def memory() -> Iterator[MemoryCgroup]:
    if memory_parent() is None:
        pytest.skip("no memory cgroup controller is mounted")
    with memory_cgroup("nri-warmup-test") as group:
        yield group


@pytest.fixture
def small_folios(disk: Path) -> Iterator[Path]:
    """A file system whose page cache is 4 KiB folios only, as most are before Linux 6.16: ext4 with data=journal."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4")
    image, mount = disk / "image", disk / "small"
    with image.open("wb") as file:
        file.truncate(512 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-J", "size=64", str(image)], check=True)
    mount.mkdir()
    result = subprocess.run(["mount", "-o", "loop,data=journal", str(image), str(mount)], check=False)
    if result.returncode != 0:
        pytest.skip("no loop devices")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)
