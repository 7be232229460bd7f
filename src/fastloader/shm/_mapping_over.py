"""Files mapped over memory that is in use: the same addresses, other pages."""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from fastloader.errors import SharedMemoryError
from fastloader.shm._memory_file import MemoryFile

__all__ = ["Call", "can_map_over", "make_own", "map_over", "mapping_over"]

_MAP_FIXED = 0x10
"""The same on all architectures of Linux that `can_map_over` admits; `mmap` lacks it."""
_ARCHITECTURES = {"x86_64", "aarch64"}


class Call(NamedTuple):
    """Of a function of C, that is still to be made."""

    function: Callable[..., object]
    arguments: tuple[object, ...]
    expected: object
    """What it returns if all went well."""


def can_map_over() -> bool:
    """Return whether `map_over` is for this system."""
    return sys.platform == "linux" and os.uname().machine in _ARCHITECTURES


def map_over(address: int, num_bytes: int, file: MemoryFile, start_bytes: int) -> None:
    """Replace what is mapped at an address by a part of a file, in one step of the system.

    Args:
        address: A multiple of the size of a page.
        num_bytes: How much.
        file: Has so much from `start_bytes` on; must not shrink. It gets what is written here.
        start_bytes: Where the part begins, a multiple of the size of a page.

    Raises:
        SharedMemoryError: If the system refuses.
    """
    call = mapping_over(address, num_bytes, file, start_bytes, private=False)
    if call.function(*call.arguments) != call.expected:
        reason = os.strerror(ctypes.get_errno())
        raise SharedMemoryError(
            f"A memory file cannot be mapped over {num_bytes} bytes in use ({reason})."
        )


def make_own(address: int, num_bytes: int) -> None:
    """Replace shared memory by a copy that is this process's own, at the same addresses.

    Args:
        address: A multiple of the size of a page.
        num_bytes: How much; the rest of the last page goes with it.

    Raises:
        SharedMemoryError: If the system refuses.
    """
    num_bytes = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    copied = MemoryFile.create(num_bytes)
    try:
        copied.write(0, memoryview((ctypes.c_char * num_bytes).from_address(address)))
        map_over(address, num_bytes, copied, 0)
    finally:
        copied.close()


def mapping_over(
    address: int, num_bytes: int, file: MemoryFile, start_bytes: int, *, private: bool
) -> Call:
    """Return the call that `map_over` makes; it keeps the interpreter.

    Args:
        address: As for `map_over`.
        num_bytes: As for `map_over`.
        file: As for `map_over`.
        start_bytes: As for `map_over`.
        private: Whether what this process writes stays its own, copied page by page.
    """
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | _MAP_FIXED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    place = (access, flags, file.fileno(), start_bytes)
    return Call(_mmap(), (address, num_bytes, *place), address)


@cache
def _mmap() -> Callable[..., object]:
    function = ctypes.PyDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    numbers = [ctypes.c_int] * 3
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *numbers, ctypes.c_int64]
    return function
