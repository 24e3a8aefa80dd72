"""Whatever JSON a runtime writes: an event or the protocol's error, and never a pid that is not one of the host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nri_warmup.errors import RemoteProtocolError
from nri_warmup.oci import event, parse_state, rootfs_path

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def object_of(*keys: str) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(keys), json_values, max_size=len(keys))


states = object_of("id", "pid", "bundle", "root", "annotations", "status") | json_values
specs = st.builds(
    lambda top, linux: {**top, "linux": linux},
    object_of("root", "mounts", "process", "annotations", "hostname"),
    object_of("namespaces", "cgroupsPath", "resources") | json_values,
)


@given(states, specs | json_values)
def test_any_json(state: object, spec: object) -> None:
    try:
        parsed = parse_state(state)
    except RemoteProtocolError:
        return
    found = event(parsed, spec)
    assert found.container is not None
    assert found.container.id == parsed.id
    assert found.container.pid == 0 or found.container.pid >= 2
    assert rootfs_path(parsed, spec) == "" or rootfs_path(parsed, spec).startswith("/")
    assert hash(found) == hash(event(parsed, spec))
