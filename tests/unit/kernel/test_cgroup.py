"""cgroup v1, hybrid and v2 from trees in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_warmup.errors import KernelError
from nri_warmup.kernel import cgroup
from nri_warmup.kernel.cgroup import CgroupVanished, Max
from nri_warmup.kernel.root import Root

CID = "4f8c2d6e0b1a" * 5 + "abcd"

V1_MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:10 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime shared:11 - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
"""
UNIFIED = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:12 - cgroup2 cgroup2 rw\n"
V2_MOUNTS = "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


def tree(root: Path, mounts: str, cgroups: str, files: dict[str, str]) -> Root:
    written = {"proc/self/mountinfo": mounts, "proc/77/cgroup": cgroups} | files
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Root(root)


def test_v1(tmp_path: Path) -> None:
    lines = f"5:cpu,cpuacct:/kubepods/{CID}\n4:memory:/kubepods/{CID}\n1:name=systemd:/kubepods/{CID}\n"
    root = tree(tmp_path, V1_MOUNTS, lines, {})
    members = cgroup.read_memberships(root, 77)
    assert [member.procs for member in members] == [
        f"sys/fs/cgroup/cpu,cpuacct/kubepods/{CID}/cgroup.procs",
        f"sys/fs/cgroup/memory/kubepods/{CID}/cgroup.procs",
        f"sys/fs/cgroup/systemd/kubepods/{CID}/cgroup.procs",
    ]
    memory = cgroup.memory_membership(root, members)
    assert memory is not None and memory.directory == f"sys/fs/cgroup/memory/kubepods/{CID}"
    assert cgroup.read_version(root) == 1


def test_hybrid_charges_in_v1_and_joins_both(tmp_path: Path) -> None:
    lines = f"4:memory:/kubepods/{CID}\n0::/kubepods/{CID}\n"
    files = {"sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n"}
    root = tree(tmp_path, V1_MOUNTS + UNIFIED, lines, files)
    members = cgroup.read_memberships(root, 77)
    assert [member.hierarchy.version for member in members] == [1, 2]
    memory = cgroup.memory_membership(root, members)
    assert memory is not None and memory.hierarchy.version == 1
    assert cgroup.read_version(root) == 1


@pytest.mark.parametrize(("controllers", "version"), [("cpuset cpu memory pids", 2), ("cpu pids", 0)])
def test_v2_with_and_without_its_memory_controller(tmp_path: Path, controllers: str, version: int) -> None:
    files = {"sys/fs/cgroup/cgroup.controllers": controllers + "\n"}
    root = tree(tmp_path, V2_MOUNTS, f"0::/kubepods.slice/cri-containerd-{CID}.scope\n", files)
    members = cgroup.read_memberships(root, 77)
    assert len(members) == 1
    memory = cgroup.memory_membership(root, members)
    assert (memory is not None) == (version == 2)
    assert cgroup.read_version(root) == version


def test_v2_charges_the_nearest_cgroup_that_has_the_controller(tmp_path: Path) -> None:
    """As crun has it: the container's processes are below the scope, in a cgroup without controllers of its own."""
    scope = f"sys/fs/cgroup/kubepods.slice/crio-{CID}.scope"
    files = {"sys/fs/cgroup/cgroup.controllers": "memory\n", f"{scope}/memory.current": "1\n"}
    files |= {f"{scope}/container/cgroup.procs": ""}
    root = tree(tmp_path, V2_MOUNTS, f"0::/kubepods.slice/crio-{CID}.scope/container\n", files)
    memory = cgroup.memory_membership(root, cgroup.read_memberships(root, 77))
    assert memory is not None and memory.directory == f"{scope}/container"
    assert cgroup.charged_directory(root, memory) == scope
    (tmp_path / scope / "container/memory.current").write_text("1\n")
    assert cgroup.charged_directory(root, memory) == f"{scope}/container"


def test_part_of_a_hierarchy_mounted_and_paths_outside_it(tmp_path: Path) -> None:
    """As in a container whose cgroup mount is a bind of its own part, or in a cgroup namespace of its own."""
    mounts = "41 31 0:38 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    lines = {"/docker/abc/child": ["sys/fs/cgroup/child"], "/docker/abc": ["sys/fs/cgroup"]}
    lines |= {"/docker/abcd": [], "/elsewhere": [], "/docker/abc/../x": []}
    for path, expected in lines.items():
        root = tree(tmp_path, mounts, f"0::{path}\n", {})
        assert [member.directory for member in cgroup.read_memberships(root, 77)] == expected, path


def test_of_two_mounts_the_whole_one_is_taken(tmp_path: Path) -> None:
    part = "50 31 0:38 /docker/abc /mnt/part rw - cgroup2 cgroup2 rw\n"
    for mounts in (part + V2_MOUNTS, V2_MOUNTS + part):
        root = tree(tmp_path, mounts, "0::/elsewhere\n", {})
        assert [member.directory for member in cgroup.read_memberships(root, 77)] == ["sys/fs/cgroup/elsewhere"]


def test_escaped_mount_point_and_deleted_cgroup(tmp_path: Path) -> None:
    mounts = "41 31 0:38 / /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw\n"
    root = tree(tmp_path, mounts, "0::/gone (deleted)\n", {})
    assert [member.directory for member in cgroup.read_memberships(root, 77)] == ["sys/fs/my cgroup/gone"]


@pytest.mark.parametrize(
    ("path", "belongs"),
    [
        (f"/kubepods/burstable/pod1/{CID}", True),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{CID}.scope", True),
        (f"/system.slice/crio-{CID}.scope/container", True),
        (f"/libpod_parent/libpod-{CID}", True),
        (f"/kubepods/pod1/{CID}/init.scope", True),
        (f"/kubepods/pod1/x{CID}", False),
        (f"/kubepods/pod1/{CID}x", False),
        ("/kubepods/pod1", False),
        ("/", False),
    ],
)
def test_belongs_to(tmp_path: Path, path: str, belongs: bool) -> None:
    root = tree(tmp_path, V2_MOUNTS, f"0::{path}\n", {})
    members = cgroup.read_memberships(root, 77)
    assert cgroup.belongs_to(members, CID) is belongs
    assert not cgroup.belongs_to(members, "")


def test_three_answers(tmp_path: Path) -> None:
    """``max``, a missing file and a vanished cgroup."""
    directory = tmp_path / "sys/fs/cgroup/a"
    directory.mkdir(parents=True)
    (directory / "memory.max").write_text("max\n")
    (directory / "memory.high").write_text("1048576\n")
    (directory / "limit").write_text("9223372036854771712\n")
    (directory / "garbage").write_text("12 34\n")
    root = Root(tmp_path)
    assert cgroup.read_value(root, "sys/fs/cgroup/a", "memory.max") is Max.MAX
    assert cgroup.read_value(root, "sys/fs/cgroup/a", "limit") is Max.MAX
    assert cgroup.read_value(root, "sys/fs/cgroup/a", "memory.high") == 1 << 20
    assert cgroup.read_value(root, "sys/fs/cgroup/a", "memory.low") is None
    with pytest.raises(CgroupVanished):
        cgroup.read_value(root, "sys/fs/cgroup/b", "memory.max")
    with pytest.raises(CgroupVanished):
        cgroup.read_stat(root, "sys/fs/cgroup/b")
    with pytest.raises(KernelError, match="not a number"):
        cgroup.read_value(root, "sys/fs/cgroup/a", "garbage")


def test_levels_of_v2(tmp_path: Path) -> None:
    base = "sys/fs/cgroup"
    stat = "anon 100\nfile 5000\nkernel 70\nshmem 20\nslab_reclaimable 30\nslab_unreclaimable 10\n"
    old_stat = "anon 100\nshmem 20\nkernel_stack 1\npagetables 2\npercpu 3\nsock 4\nslab_unreclaimable 10\n"
    files = {
        f"{base}/cgroup.controllers": "memory\n",
        f"{base}/pods/memory.max": "max\n",
        f"{base}/pods/memory.current": "9000\n",
        f"{base}/pods/memory.stat": old_stat,
        f"{base}/pods/{CID}/memory.max": "4096\n",
        f"{base}/pods/{CID}/memory.high": "2048\n",
        f"{base}/pods/{CID}/memory.current": "1000\n",
        f"{base}/pods/{CID}/memory.stat": stat,
    }
    root = tree(tmp_path, V2_MOUNTS, f"0::/pods/{CID}\n", files)
    member = cgroup.memory_membership(root, cgroup.read_memberships(root, 77))
    assert member is not None
    own, parent = cgroup.read_memory_levels(root, member)
    assert (own.limit_bytes, own.high_bytes, own.usage_bytes, own.unreclaimable_bytes) == (4096, 2048, 1000, 160)
    assert (parent.limit_bytes, parent.high_bytes, parent.usage_bytes, parent.unreclaimable_bytes) == (
        None,
        None,
        9000,
        140,
    )
    assert own.path == str(tmp_path / base / "pods" / CID)


def test_levels_of_v1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory"
    files = {
        f"{base}/pods/memory.limit_in_bytes": "9223372036854771712\n",
        f"{base}/pods/memory.usage_in_bytes": "9000\n",
        f"{base}/pods/{CID}/memory.limit_in_bytes": "4096\n",
        f"{base}/pods/{CID}/memory.usage_in_bytes": "1000\n",
        f"{base}/pods/{CID}/memory.kmem.usage_in_bytes": "50\n",
        f"{base}/pods/{CID}/memory.stat": "rss 1\ntotal_rss 100\ntotal_shmem 20\ntotal_cache 999\n",
    }
    root = tree(tmp_path, V1_MOUNTS, f"4:memory:/pods/{CID}\n", files)
    member = cgroup.memory_membership(root, cgroup.read_memberships(root, 77))
    assert member is not None
    own, parent = cgroup.read_memory_levels(root, member)
    assert (own.limit_bytes, own.high_bytes, own.usage_bytes, own.unreclaimable_bytes) == (4096, None, 1000, 170)
    assert (parent.limit_bytes, parent.usage_bytes, parent.unreclaimable_bytes) == (None, 9000, None)


def test_levels_of_a_container_that_is_gone(tmp_path: Path) -> None:
    root = tree(tmp_path, V2_MOUNTS, f"0::/pods/{CID}\n", {"sys/fs/cgroup/cgroup.controllers": "memory\n"})
    member = cgroup.memory_membership(root, cgroup.read_memberships(root, 77))
    assert member is not None
    with pytest.raises(CgroupVanished):
        cgroup.read_memory_levels(root, member)


def test_no_such_process(tmp_path: Path) -> None:
    root = tree(tmp_path, V1_MOUNTS, "", {})
    with pytest.raises(KernelError) as caught:
        cgroup.read_memberships(root, 78)
    assert caught.value.errno == 2
