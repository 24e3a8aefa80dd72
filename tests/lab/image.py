"""OCI image archives from files, by the standard library alone: one layer, no registry, no network."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def write_layer(files: Mapping[str, Path | bytes], links: Mapping[str, str], directories: Sequence[str]) -> bytes:
    """A tar with ``files`` (path -> host file or content, mode 0755), symbolic ``links`` and ``directories``."""
    out = io.BytesIO()
    parents = {str(parent) for name in [*files, *links] for parent in Path(name).parents} - {"/", "."}
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in sorted({d.strip("/") for d in parents | set(directories)}):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            entry = tarfile.TarInfo(name.strip("/"))
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
        for name, target in links.items():
            entry = tarfile.TarInfo(name.strip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return out.getvalue()


def write_image(
    out: Path,
    name: str,
    files: Mapping[str, Path | bytes],
    *,
    links: Mapping[str, str] | None = None,
    directories: Sequence[str] = (),
    config: Mapping[str, object] | None = None,
) -> Path:
    """Write an OCI archive that imports as ``name`` (``localhost/probe:1``). ``config``: Entrypoint, Cmd, Env …"""
    blobs: dict[str, bytes] = {}

    def put(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    machine = {"architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    layer = put(write_layer(files, links or {}, directories), _LAYER)
    image = {
        **machine,
        "config": dict(config or {}),
        "created": "2026-01-01T00:00:00Z",
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
        "history": [{"created_by": "nri-warmup test lab"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": put(json.dumps(image).encode(), _CONFIG),
        "layers": [layer],
    }
    entry = put(json.dumps(manifest).encode(), _MANIFEST) | {
        "platform": machine,
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]},
    }
    members = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
        **{f"blobs/sha256/{digest}": data for digest, data in blobs.items()},
    }
    with tarfile.open(out, "w") as tar:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return out
