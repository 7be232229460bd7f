"""Pages of mapped files that were read, and count as memory of the process for as long as it has them."""

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fastloader.errors import SourceError
from fastloader.machine._huge_pages import advise
from fastloader.sources._file_errors import naming

__all__ = ["ask_for_pages", "find_views", "let_go_of_pages", "read_view"]

_MADV_DONTNEED = 4  # of Linux, the only system that `advise` asks
_MADV_POPULATE_READ = 22  # of Linux 5.14; not in `mmap`


def ask_for_pages(content: npt.NDArray[Any]) -> None:
    """Take pages of a mapped file into this process at once: by a fault for every few takes longer.

    Args:
        content: Contiguous; what is on its pages will be looked at next.
    """
    start = content.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    # Older systems refuse, and the others where the file has become shorter.
    advise(start, content.ctypes.data + content.nbytes - start, _MADV_POPULATE_READ)


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
    targets: Iterable[npt.NDArray[np.uint8]],
) -> None:
    """Read what a view of a mapped file holds, without a look at it.

    Args:
        path: The file, as error messages name it.
        file: The same, open.
        addresses: Where all of it is mapped.
        view: One dimension, contiguous, all or nothing of it there.
        targets: Filled, one after another; contiguous, as long as the view together.

    Raises:
        SourceError: If it cannot be read, or has become shorter.
    """
    address, num_done = view.ctypes.data, 0
    if address not in addresses:  # a library may have made it
        content = view.view(np.uint8)
        for target in targets:
            target[:] = content[num_done : num_done + len(target)]
            num_done += len(target)
        return
    with naming(path, "as it was when it was opened"):
        file.seek(address - addresses.start)
        for target in targets:
            num_done += file.readinto(target)
    if num_done != view.nbytes:
        raise SourceError(
            f"{path} has become shorter since it was opened: make the dataset anew."
        )


def find_views(array: pa.Array, path: str) -> list[tuple[range, npt.NDArray[np.uint8]]]:
    """Return those buffers of an array that are views of a file that a library has mapped.

    For as long as they are held, the library cannot take the mapping away.

    Args:
        array: Of any type.
        path: The file.

    Returns:
        Addresses of the mapping, to which nobody writes, and the content of each; none where the
        system does not tell.
    """
    mappings = list(_mappings_of(path))
    buffers = [buffer for buffer in array.buffers() if buffer is not None and buffer.size]
    return [
        (addresses, np.frombuffer(buffer, np.uint8))
        for buffer in buffers
        for addresses in mappings
        if buffer.address in addresses
    ]


def _mappings_of(path: str) -> Iterator[range]:
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    name = os.path.realpath(path)
    for line in lines:
        addresses, access, *_, mapped = line.split(maxsplit=5)
        if "w" not in access and mapped == name:
            start, stop = (int(address, 16) for address in addresses.split("-"))
            yield range(start, stop)
