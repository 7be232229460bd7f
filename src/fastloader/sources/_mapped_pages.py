"""Pages of mapped files that were read, and count as memory of the process for as long as it has them."""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import SourceError
from fastloader.machine._huge_pages import advise
from fastloader.sources._file_errors import naming

__all__ = ["let_go_of_pages", "read_view"]

_MADV_DONTNEED = 4  # of Linux, the only system that `advise` asks


def let_go_of_pages(addresses: range, content: npt.NDArray[Any]) -> None:
    """Take pages out of this process; who looks at them again has them from the file.

    Args:
        addresses: Of the mapping of a file, to whose parts that are given nobody writes: anywhere
            else what they hold would be lost.
        content: Contiguous; left alone if it is not there.
    """
    start = content.ctypes.data
    stop = start + content.nbytes
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # others may be on the outer ones
    last = stop // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and start in addresses and stop - 1 in addresses:
        advise(first, last - first, _MADV_DONTNEED)


def read_view(
    path: str,
    file: pa.NativeFile,
    addresses: range,
    view: npt.NDArray[Any],
    target: npt.NDArray[Any],
) -> None:
    """Read what a view of a mapped file holds, without a look at it.

    Args:
        path: The file, as error messages name it.
        file: The same, open.
        addresses: Where all of it is mapped.
        view: One dimension, contiguous, all or nothing of it there.
        target: Filled; contiguous.

    Raises:
        SourceError: If it cannot be read, or has become shorter.
    """
    if view.ctypes.data not in addresses:  # a library may have made it
        target[:] = view
        return
    with naming(path, "as it was when it was opened"):
        file.seek(view.ctypes.data - addresses.start)
        num_read = file.readinto(target.view(np.uint8).data)
    if num_read != view.nbytes:
        raise SourceError(
            f"{path} has become shorter since it was opened: make the dataset anew."
        )
