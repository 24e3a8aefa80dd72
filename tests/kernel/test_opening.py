"""Finding and opening files in a hostile tree: ``inject/files.py`` against a real file system."""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.inject.files import Bounds, Finder, Refused
from nri_warmup.inject.job import WarmJob
from nri_warmup.model.outcome import OutcomeState
from nri_warmup.model.warmset import FileState
from tests.kernel.containers import MIB, container, make_file, resident
from tests.kernel.jobs import warm

RENAME_EXCHANGE = 2


@pytest.fixture
def root(disk: Path) -> Path:
    folder = disk / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def self_fd() -> Iterator[int]:
    fd = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def finder(root: Path, self_fd: int, **bounds: int) -> Finder:
    values = {"files": 1000} | bounds
    return Finder(os.open(root, os.O_PATH | os.O_DIRECTORY), self_fd, Bounds(**values))


def expand(root: Path, self_fd: int, *patterns: str) -> list[str]:
    found = finder(root, self_fd)
    found.expand(patterns)
    return [item.path for item in found.found]


def refusals(root: Path, self_fd: int, *patterns: str) -> dict[str, tuple[str, str]]:
    found = finder(root, self_fd)
    found.expand(patterns)
    return {path: (state, detail) for path, state, detail in found.refused}


def test_globs(root: Path, self_fd: int) -> None:
    for name in ("a.bin", "b.bin", "c.txt", ".hidden", "sub/d.bin", "sub/deep/e.bin", ".git/f.bin"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert expand(root, self_fd, "/*.bin") == ["/a.bin", "/b.bin"]
    assert expand(root, self_fd, "/[ac].*") == ["/a.bin", "/c.txt"]
    assert expand(root, self_fd, "/**/*.bin") == ["/a.bin", "/b.bin", "/sub/d.bin", "/sub/deep/e.bin"]
    assert expand(root, self_fd, "/sub/**") == ["/sub/d.bin", "/sub/deep/e.bin"]
    assert expand(root, self_fd, "/**/deep/*") == ["/sub/deep/e.bin"]
    assert expand(root, self_fd, "/.*") == ["/.hidden"]
    assert expand(root, self_fd, "/.git/*", "/*.txt") == ["/.git/f.bin", "/c.txt"]


def test_order_is_by_pattern_then_small_first(root: Path, self_fd: int) -> None:
    for name, size in (("a-large", 3 * MIB), ("b-small", 10), ("c-large", 2 * MIB), ("first", 5 * MIB)):
        with (root / name).open("wb") as file:
            file.truncate(size)
    assert expand(root, self_fd, "/first", "/*") == ["/first", "/b-small", "/a-large", "/c-large"]


def test_one_inode_once(root: Path, self_fd: int) -> None:
    (root / "one").write_text("x")
    os.link(root / "one", root / "two")
    (root / "three").symlink_to("one")
    assert expand(root, self_fd, "/*", "/one", "/two") == ["/one"]


def test_links_stay_inside_the_root(root: Path, self_fd: int) -> None:
    (root / "inside").write_text("x")
    (root / "ok").symlink_to("/inside")
    (root / "dots").symlink_to("../../../../inside")
    (root / "out").symlink_to(str(Path(__file__)))
    (root / "up").symlink_to("../" * 30 + "etc/passwd")
    assert expand(root, self_fd, "/ok") == ["/ok"]
    assert expand(root, self_fd, "/dots") == ["/dots"]
    assert expand(root, self_fd, "/../../inside") == ["/../../inside"]
    assert refusals(root, self_fd, "/out", "/up") == {
        "/out": ("vanished", "no such file"),
        "/up": ("vanished", "no such file"),
    }


def test_a_linked_directory_is_followed_by_name_but_not_by_recursion(root: Path, self_fd: int) -> None:
    (root / "real").mkdir()
    (root / "real" / "x.bin").write_text("x")
    (root / "alias").symlink_to("real")
    (root / "real" / "again").symlink_to("..")
    assert expand(root, self_fd, "/alias/*.bin") == ["/alias/x.bin"]
    assert expand(root, self_fd, "/a*/x.bin") == ["/alias/x.bin"]
    assert expand(root, self_fd, "/**/x.bin") == ["/real/x.bin"]


@pytest.mark.parametrize(
    ("pattern", "state", "detail"),
    [
        ("/fifo", "refused", "a FIFO"),
        ("/null", "refused", "a character device"),
        ("/disk", "refused", "a block device"),
        ("/folder", "refused", "a directory; write /folder/**"),
        ("/loop", "refused", "ELOOP"),
        ("/nothing", "vanished", "no such file"),
        ("/file/below", "vanished", "no such file"),
        ("relative", "refused", "not an absolute path"),
        ("/" + "n" * 300, "refused", "ENAMETOOLONG"),
        ("/a\0b", "refused", "EINVAL"),
        ("/no-*", "vanished", "no file matches"),
        ("/folder/**", "vanished", "no file matches"),
    ],
)
def test_what_is_refused(root: Path, self_fd: int, pattern: str, state: str, detail: str) -> None:
    os.mkfifo(root / "fifo")
    os.mknod(root / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(root / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 250))
    (root / "folder").mkdir()
    (root / "loop").symlink_to("loop")
    (root / "file").write_text("x")
    assert refusals(root, self_fd, pattern) == {pattern: (state, detail)}


def test_pseudo_file_systems(self_fd: int) -> None:
    answers = refusals(Path("/"), self_fd, "/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/**")
    assert answers["/proc/version"] == ("refused", "on proc")
    assert answers["/sys/kernel/mm/transparent_hugepage/enabled"] == ("refused", "on sysfs")
    assert answers["/proc"] == ("refused", "on proc")


def test_magic_links_are_not_followed(root: Path, self_fd: int) -> None:
    fd = os.open(__file__, os.O_RDONLY)
    try:
        assert refusals(Path("/"), self_fd, f"/proc/self/fd/{fd}", f"/proc/self/root{__file__}") == {
            f"/proc/self/fd/{fd}": ("refused", "ELOOP"),
            f"/proc/self/root{__file__}": ("refused", "ELOOP"),
        }
    finally:
        os.close(fd)


def test_expansion_is_bounded(root: Path, self_fd: int) -> None:
    for i in range(300):
        (root / f"{i:03}").touch()
    found = finder(root, self_fd, entries=100)
    found.expand(("/*",))
    assert len(found.found) == 100, "of an enormous directory, what came first is used"
    assert "more than 100 directory entries" in found.notes[0]
    found = finder(root, self_fd, files=7)
    found.expand(("/*",))
    assert len(found.found) == 7
    assert "more than 7 files" in found.notes[0]
    found = finder(root, self_fd, seconds=-1)
    found.expand(("/*",))
    assert "more than -0.5 s" in found.notes[0]
    deep = root
    for _ in range(30):
        deep /= "d"
        deep.mkdir()
    found = finder(root, self_fd, depth=20)
    found.expand(("/**/x",))
    assert "deeper than 20" in found.notes[0]


def test_a_glob_over_everything_ends_as_an_outcome(disk: Path) -> None:
    root = disk / "rootfs"
    for i in range(50):
        (root / f"{i}").mkdir(parents=True)
        for k in range(50):
            (root / f"{i}" / f"{k}").touch()
    (root / "proc").mkdir()
    with container(root, binds=[(Path("/proc"), "/proc")]) as box:
        order = WarmJob(id="x", pid=box.pid, patterns=("/**/**/*", "/**", "/*/*/**/*"), max_files=500, deadline_s=20)
        outcome = warm(order)
    assert outcome.state is OutcomeState.PARTIAL
    assert "more than 500 files" in outcome.reason
    assert outcome.seconds < 15


def test_swapping_a_file_between_look_and_open(root: Path, self_fd: int) -> None:
    """Whatever stands at the path at that moment, what is opened is the regular file that was looked at, or nothing."""
    (root / "file").write_text("x")
    os.mkfifo(root / "other")
    libc = ctypes.CDLL(None, use_errno=True)
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        a, b = os.fsencode(root / "file"), os.fsencode(root / "other")
        while not stop.is_set():
            assert libc.renameat2(-100, a, -100, b, RENAME_EXCHANGE) == 0
            swaps += 1

    found = finder(root, self_fd)
    found.expand(("/file",))
    thread = threading.Thread(target=swap)
    thread.start()
    kinds = {"file": 0, "refused": 0}
    try:
        for _ in range(3000):
            try:
                fd, _ = found.open(found.found[0])
            except Refused as refusal:
                assert refusal.state in ("refused", "vanished")
                kinds["refused"] += 1
                continue
            assert stat.S_ISREG(os.fstat(fd).st_mode)
            os.close(fd)
            kinds["file"] += 1
    finally:
        stop.set()
        thread.join()
    assert kinds["file"] and kinds["refused"] and swaps > 100, (kinds, swaps)


def test_links_out_of_a_container_read_nothing_of_the_host(disk: Path) -> None:
    secret = make_file(disk / "secret", 3 * MIB)
    root = disk / "rootfs"
    root.mkdir()
    (root / "model.bin").symlink_to(secret)
    (root / "up.bin").symlink_to(f"{'../' * 20}{secret}")
    with container(root) as box:
        outcome = warm(WarmJob(id="x", pid=box.pid, patterns=("/*.bin",)))
    assert [file.state for file in outcome.files] == [FileState.VANISHED] * 2
    assert resident(secret) == 0


def test_unreadable_and_replaced_files(root: Path, self_fd: int) -> None:
    (root / "file").write_text("x")
    found = finder(root, self_fd)
    found.expand(("/file",))
    (root / "new").write_text("y")
    (root / "new").rename(root / "file")
    with pytest.raises(Refused, match="replaced"):
        found.open(found.found[0])


def test_files_of_others_in_a_user_namespace(disk: Path) -> None:
    """Root of a user namespace is nobody to a file of an unmapped owner."""
    root = disk / "rootfs"
    root.mkdir()
    os.chown(root, 100000, 100000)
    make_file(root / "mine", 3 * MIB)
    os.chown(root / "mine", 100000, 100000)
    make_file(root / "theirs", 3 * MIB).chmod(0o600)
    make_file(root / "public", 3 * MIB).chmod(0o644)
    with container(root, user_namespace=True) as box:
        outcome = warm(WarmJob(id="x", pid=box.pid, patterns=("/*",)))
    files = {file.path: file for file in outcome.files}
    assert files["/mine"].state is FileState.WARMED and files["/mine"].resident_bytes == 3 * MIB
    assert files["/theirs"].state is FileState.UNREADABLE
    assert files["/public"].resident_bytes is None, "mincore does not tell the truth to one who is not the owner"
    assert files["/public"].read_bytes == 3 * MIB and files["/public"].active
    assert resident(root / "public") == 3 * MIB
    assert outcome.resident_bytes is None and outcome.coverage is None
    assert outcome.wanted_bytes == 6 * MIB
