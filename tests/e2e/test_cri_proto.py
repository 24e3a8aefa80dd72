"""Our description of CRI says of each field what Kubernetes' own says: same number, type and cardinality."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from tests.lab.store import LAB, ROOT

MODULE = "k8s.io/cri-api@v0.37.0"


def _compile(proto: Path) -> tuple[dict[str, DescriptorProto], dict[str, EnumDescriptorProto]]:
    with tempfile.NamedTemporaryFile() as out:
        includes = Path(grpc_tools.__file__).parent / "_proto"
        command = ["protoc", f"-I{proto.parent}", f"-I{includes}", f"--descriptor_set_out={out.name}", str(proto)]
        assert protoc.main(command) == 0
        file = FileDescriptorSet.FromString(Path(out.name).read_bytes()).file[0]
    return {m.name: m for m in file.message_type}, {e.name: e for e in file.enum_type}


@pytest.fixture(scope="module")
def upstream() -> Path:
    go = subprocess.run([LAB / "go.sh"], capture_output=True, text=True, check=True).stdout.strip()
    command = [go, "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"GOFLAGS": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(json.loads(done.stdout)["Dir"]) / "pkg" / "apis" / "runtime" / "v1" / "api.proto"


def test_our_description_of_cri_is_a_part_of_kubernetes_own(upstream: Path) -> None:
    messages, enums = _compile(ROOT / "proto" / "cri.proto")
    theirs, their_enums = _compile(upstream)

    def fields(message: DescriptorProto) -> set[tuple[object, ...]]:
        return {(f.name, f.number, f.type, f.label, f.type_name) for f in message.field}

    wrong = {name: fields(ours) - fields(theirs[name]) for name, ours in messages.items()}
    assert {name: difference for name, difference in wrong.items() if difference} == {}
    for name, ours in enums.items():
        assert {(v.name, v.number) for v in ours.value} <= {(v.name, v.number) for v in their_enums[name].value}
