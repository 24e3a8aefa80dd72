"""What cannot be a path never reaches the kernel, and is the caller's ordinary error."""

from __future__ import annotations

import errno

import pytest

from nri_warmup.errors import KernelError
from nri_warmup.kernel import syscalls


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_what_no_file_can_be_called_is_invalid(path: str) -> None:
    with pytest.raises(KernelError) as caught:
        syscalls.openat2(-1, path, 0, 0)
    assert caught.value.errno == errno.EINVAL
