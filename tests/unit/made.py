"""What the unit tests share: the sentence that a call ends in, the real data sets, and an archive as CIFAR-10's."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import data_folder
from zofl_mpi.errors import UserError


def complaint(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The one line of the UserError that a call must end in."""
    with pytest.raises(UserError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def real(*files: str) -> Path:
    """The folder of the data sets, where it has these files."""
    folder = data_folder()
    if not all((folder / file).is_file() for file in files):
        pytest.skip(f"the real data set is not in {folder} (set ZOFL_DATA)")
    return folder


def idx(array: Any) -> bytes:
    """A file of MNIST's format with this array of bytes."""
    shape = b"".join(length.to_bytes(4, "big") for length in np.shape(array))
    return bytes((0, 0, 8, np.ndim(array))) + shape + np.asarray(array, np.uint8).tobytes()


def archive(files: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """A tar archive of these batches."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
        for file, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()
