"""Which NRI is inferred from what a runtime says."""

from __future__ import annotations

import pytest

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.nri import messages as m
from nri_warmup.nri.versions import RuntimeInfo, Version, infer_nri_version, parse_configure, parse_version


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.7.24~ds1", (1, 7, 24)),
        ("2.1.9+unknown", (2, 1, 9)),
        ("v2.1.9", (2, 1, 9)),
        ("2.4.0-rc.1", (2, 4, 0)),
        ("1.37", (1, 37, 0)),
        ("v0.12.0-12-gabcdef", (0, 12, 0)),
        ("unknown", None),
        ("", None),
    ],
)
def test_versions_as_distributions_write_them(text: str, version: Version | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("name", "runtime", "timeout", "told", "nri"),
    [
        ("containerd", "1.7.0", 0, "", (0, 3, 0)),
        ("containerd", "1.7.24~ds1", 0, "", (0, 6, 1)),
        ("containerd", "v1.7.27", 2000, "", (0, 8, 0)),
        ("containerd", "2.1.9+unknown", 2000, "", (0, 8, 0)),
        ("containerd", "2.2.0", 2000, "", (0, 10, 0)),
        ("containerd", "2.2.1", 2000, "", (0, 11, 0)),
        ("containerd", "2.4.2+unknown", 2000, "v0.12.3", (0, 12, 3)),
        ("cri-o", "1.26.0", 0, "", (0, 2, 0)),
        ("cri-o", "1.31.2", 0, "", (0, 6, 1)),
        ("cri-o", "1.33.0", 2000, "", (0, 9, 0)),
        ("cri-o", "1.36.0", 2000, "", (0, 11, 0)),
        ("cri-o", "1.37.0", 2000, "0.12.0", (0, 12, 0)),
        # What the message shows counts for more than a name or a table.
        ("containerd", "2.1.9", 0, "", (0, 6, 1)),
        ("containerd", "1.7.24", 2000, "", (0, 7, 0)),
        ("containerd", "2.9.0", 2000, "", (0, 11, 99)),
        ("dockerd", "29.2", 2000, "", (0, 7, 0)),
        ("dockerd", "29.2", 0, "", (0, 2, 0)),
        ("containerd", "unknown", 2000, "", (0, 7, 0)),
    ],
)
def test_inference(name: str, runtime: str, timeout: int, told: str, nri: Version) -> None:
    request = m.ConfigureRequest(
        config="text", runtime_name=name, runtime_version=runtime, request_timeout=timeout, NRI_version=told
    )
    config, info = parse_configure(request.SerializeToString())
    assert config == "text"
    assert info.nri_version == nri == infer_nri_version(name, runtime, timeout, told)
    assert info.nri_told is bool(told)
    assert info.request_timeout_s == 2.0


def test_timeouts_and_unknown_fields() -> None:
    request = m.ConfigureRequest(registration_timeout=7000, request_timeout=500).SerializeToString()
    _, info = parse_configure(request + bytes.fromhex("a00605"))
    assert (info.registration_timeout_s, info.request_timeout_s) == (7.0, 0.5)
    with pytest.raises(RemoteProtocolError):
        parse_configure(b"\x0a\x02\xff\xff")


@pytest.mark.parametrize(
    ("version", "mask", "updates"),
    [((0, 9, 0), 0x7FF, False), ((0, 10, 0), 0x3FFF, False), ((0, 12, 0), 0x3FFF, False), ((0, 12, 1), 0x3FFF, True)],
)
def test_what_a_version_means(version: Version, mask: int, updates: bool) -> None:
    info = RuntimeInfo(nri_version=version)
    assert (info.valid_mask, info.takes_unsolicited_updates) == (mask, updates)
