"""An image whose Python, locale, name service and loader files are hostile: none of it is ever run or loaded by the
worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_warmup.inject import zygote_main
from nri_warmup.inject.job import WarmJob
from nri_warmup.model.outcome import OutcomeState
from tests.kernel.containers import MIB, Container, container, make_file, wait_for
from tests.kernel.jobs import Held, while_held

MARK = "/poisoned"
MODULES = ("json", "traceback", "linecache", "locale", "warnings", "inspect", "tokenize", "sitecustomize", "gettext")
CODECS = ("latin_1", "idna", "cp1252", "utf_16", "ascii", "utf_8", "aliases", "__init__")


def poison(root: Path) -> None:
    """A standard library and a package, wherever the host's interpreter would look, that leave a mark when run."""
    code = f"open({MARK!r}, 'a').write(__name__ + ' ')\n"
    folders = {*sys.path, sysconfig.get_path("stdlib"), "/usr/lib/python3", str(Path(__file__).parents[2]), "/"}
    for folder in filter(None, folders):
        inside = root / folder.lstrip("/")
        (inside / "encodings").mkdir(parents=True, exist_ok=True)
        (inside / "ctypes").mkdir(exist_ok=True)
        for module in MODULES:
            (inside / f"{module}.py").write_text(code)
        for codec in CODECS:
            (inside / "encodings" / f"{codec}.py").write_text(code)
        (inside / "ctypes" / "util.py").write_text(code)
    for name in ("etc/ld.so.preload", "etc/nsswitch.conf", "etc/ld.so.conf", "etc/ld.so.cache", "etc/localtime"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("/lib/evil.so\n")


@pytest.fixture
def box(disk: Path) -> Iterator[Container]:
    root = disk / "rootfs"
    root.mkdir()
    poison(root)
    (root / "models").mkdir()
    make_file(root / "models" / "model.bin", 4 * MIB)
    with container(root) as running:
        yield running


def nasty_names(models: Path) -> None:
    """Names and files that take the worker through its unusual paths: encodings, refusals, errors."""
    for name in (b"\xff\xfe.bin", "ß.bin".encode(), b"new\nline.bin", b'quo"te\\.bin', b"\x7f\x01.bin"):
        Path(os.fsdecode(os.fsencode(models) + b"/" + name)).write_bytes(b"x" * 5000)
    os.mkfifo(models / "fifo")
    (models / "loop").symlink_to("loop")
    (models / "empty").touch()


def test_a_poisoned_image_is_warmed_and_never_run(disk: Path, box: Container) -> None:
    nasty_names(box.root / "models")
    mapped: dict[str, set[str]] = {}

    def look(held: Held) -> None:
        mapped["zygote"] = mapped_files(held.injector.zygote_pid or 0)
        mapped["worker"] = mapped_files(held.worker_pid)

    patterns = ("/models/**", "/models/nothing", "relative", "/models/\udcff?.bin", "/[")
    outcome = while_held(disk, WarmJob(id="x", pid=box.pid, patterns=patterns, deadline_s=30), look)
    assert outcome.state is OutcomeState.PARTIAL, outcome
    assert outcome.files_total >= 9
    assert {file.path for file in outcome.files} >= {"/models/\udcff\udcfe.bin", "/models/new\nline.bin"}
    assert not (box.root / MARK.lstrip("/")).exists()
    assert mapped["worker"] <= mapped["zygote"], "a library was loaded after the image was entered"


def mapped_files(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return {file for file in files if not file.startswith("/models/")}  # what is being warmed


IMPORTS = {
    "import json": "import json",
    "a codec": "b'x'.decode('cp1252')",
    "locale and gettext": "import gettext",
    "a traceback": "1/0",
}


@pytest.mark.parametrize("doors", ["closed", "open"])
def test_no_late_import_finds_the_image(disk: Path, doors: str) -> None:
    """What ``close_the_doors`` is for, shown both ways: a late import after entering runs the image's code, unless …"""
    root = disk / "rootfs"
    root.mkdir()
    poison(root)
    child = os.fork()
    if child == 0:
        try:
            for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
                del sys.modules[name]
            sys.path_importer_cache.clear()
            if doors == "closed":
                zygote_main.close_the_doors()
            os.chroot(root)
            os.chdir("/")
            for code in IMPORTS.values():
                try:
                    exec(code)
                except BaseException:
                    pass
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (root / MARK.lstrip("/")).exists() is (doors == "open")


def test_an_error_that_nobody_catches_looks_for_no_source_lines(disk: Path) -> None:
    """Python's own hook opens the files that a traceback names: in the image, where one may be a FIFO and hang it."""
    os.mkfifo(disk / "source.py")
    child = os.fork()
    if child == 0:
        try:
            zygote_main.close_the_doors()
            os.chroot(disk)
            try:
                exec(compile("1/0", "/source.py", "exec"))
            except ZeroDivisionError as exc:
                sys.excepthook(type(exc), exc, exc.__traceback__)
        finally:
            os._exit(0)
    ended: list[int] = []

    def look() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(pid)

    try:
        wait_for(look, "the child to end", 5.0)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == [70]


def test_the_zygote_has_nothing_imported_that_it_does_not_need() -> None:
    """Its memory counts on every node: no asyncio, json, re, typing, dataclasses in it."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import nri_warmup.inject.zygote_main; print(*sys.modules)"
    parent = str(Path(__file__).parents[2])
    argv = [sys.executable, "-I", "-S", "-X", "utf8", "-c", code, parent]
    modules = set(subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split())
    unwanted = {"asyncio", "json", "re", "typing", "dataclasses", "inspect", "enum", "logging", "socket", "subprocess"}
    assert not modules & unwanted
    assert not {name for name in modules if name.startswith("nri_warmup.model")}
