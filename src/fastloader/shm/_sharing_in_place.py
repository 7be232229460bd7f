"""Memory of the caller's that a file takes the place of, so that processes hold it once."""

import ctypes
import logging
import mmap
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloader.machine._address_space import Span, read_spans
from fastloader.shm._mapping_over import Call, can_map_over, mapping_over
from fastloader.shm._memory_file import MemoryFile
from fastloader.shm._stillness import call_undisturbed, find_hidden_writer

__all__ = ["LARGE_BYTES", "place_in_file", "write_sharing"]

logger = logging.getLogger("fastloader")

LARGE_BYTES = 32 << 20
"""Above this the C library takes memory for one array from the system, and gives it back."""
_PIECE_BYTES = 4 << 20
"""Held twice for a moment, and compared while no other thread runs: 1 ms."""
_HEADER_BYTES = 16
_IS_MAPPED = 0b010
_FLAGS = 0b111


class _Part(NamedTuple):
    """Whole pages of some content, by the bytes of the content."""

    start: int
    stop: int
    address: int
    """Of byte `start`."""


def place_in_file(end_bytes: int, content: memoryview, alignment_bytes: int) -> int:
    """Return where in a file some content goes, so that `write_sharing` can share it.

    Args:
        end_bytes: Of what the file holds so far.
        content: Contiguous.
        alignment_bytes: Of places where it does not matter, 64 or so.

    Returns:
        The place, in bytes: for large content as far into a page as it is in memory.
    """
    if content.nbytes < LARGE_BYTES:
        return end_bytes + -end_bytes % alignment_bytes
    return end_bytes + (_address(content) - end_bytes) % mmap.PAGESIZE


def write_sharing(file: MemoryFile, start_bytes: int, content: memoryview) -> None:
    """Write to a file, and let this process hold the bytes in it too, where that is safe.

    Objects over the content, and addresses in it, stay valid and see the same bytes. What this
    process writes to them later stays its own, as what others write to the file's pages that
    they have mapped privately stays theirs. It is safe for memory of one array that the C library
    took from the system, while no other thread runs and nothing else can write to it, as a device
    might. Otherwise the bytes are in memory twice from now on, and why is logged.

    Args:
        file: Long enough; must not shrink or be written to again.
        start_bytes: From `place_in_file`.
        content: Contiguous.

    Raises:
        SharedMemoryError: If the system has no room for them.
    """
    part: _Part | str = "it is small"
    if content.nbytes >= LARGE_BYTES:
        part = _find_part(content)
    if isinstance(part, str):
        file.write(start_bytes, content)
        if content.nbytes >= LARGE_BYTES:
            _tell(content.nbytes, part)
        return
    file.write(start_bytes, content[: part.start])
    file.write(start_bytes + part.stop, content[part.stop :])
    written = file.map(private=True)
    left_bytes = 0
    for start, stop in _pieces(part):
        file.write(start_bytes + start, content[start:stop])
        copy = ctypes.addressof(ctypes.c_char.from_buffer(written, start_bytes + start))
        address = part.address + start - part.start
        is_moved = call_undisturbed(
            _comparison(address, copy, stop - start),
            mapping_over(address, stop - start, file, start_bytes + start, private=True),
        )
        left_bytes += 0 if is_moved else stop - start
    if left_bytes:
        _tell(left_bytes, "another thread runs, or has changed it")


def _comparison(address: int, copy: int, num_bytes: int) -> Call:
    return Call(_memcmp(), (address, copy, num_bytes), 0)


@cache
def _memcmp() -> Callable[..., object]:
    function = ctypes.PyDLL(None).memcmp
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function


def _pieces(part: _Part) -> Iterator[tuple[int, int]]:
    for start in range(part.start, part.stop, _PIECE_BYTES):
        yield start, min(start + _PIECE_BYTES, part.stop)


def _find_part(content: memoryview) -> _Part | str:
    """Return the pages that can be replaced, or why none can be."""
    if not can_map_over():
        return "this system cannot"
    owned = _owned_address(content)
    try:
        spans = list(read_spans())
    except OSError as error:
        return f"the system does not tell what is mapped ({error})"
    if owned is None or not _is_mapped_by_malloc(owned, spans):
        return "it is not memory that the C library took from the system for it alone"
    if not all(_is_replaceable(span) for span in spans if _overlap(span, content)):
        return "it is mapped in a special way"
    writer = find_hidden_writer()
    if writer is not None:
        return writer
    address = _address(content)
    start = -address % mmap.PAGESIZE
    stop = content.nbytes - (address + content.nbytes) % mmap.PAGESIZE
    return _Part(start, stop, address + start)


def _overlap(span: Span, content: memoryview) -> bool:
    address = _address(content)
    return span.start < address + content.nbytes and address < span.stop


def _is_replaceable(span: Span) -> bool:
    is_own_file = span.name.startswith("/memfd:fastloader ")  # from an earlier time
    return span.rights == "rw-p" and (is_own_file or (span.inode == 0 and not span.name))


def _owned_address(content: memoryview) -> int | None:
    """Return where the memory begins that some content is a part of, if its owner is known."""
    owner: Any = content.obj
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if isinstance(owner, np.ndarray) and owner.flags.owndata:
        return int(owner.ctypes.data)
    if isinstance(owner, torch.Tensor):
        return owner.untyped_storage().data_ptr()
    return None


def _is_mapped_by_malloc(address: int, spans: list[Span]) -> bool:
    """Tell whether glibc has mapped pages for this allocation, which it unmaps with it.

    Other allocators use memory again, and rely on what the system does with pages that they have
    given back, which differs for those of a file. What glibc notes before the memory is told by
    its ``malloc/malloc.c``: the bytes before the chunk, then its size and three flags.
    """
    interposed, own = ctypes.CDLL(None), _glibc()
    if own is None or _function(interposed) != _function(own):
        return False
    header = address - _HEADER_BYTES
    if not any(span.start <= header and address <= span.stop for span in spans):
        return False
    before, noted = (ctypes.c_size_t.from_address(header + 8 * word).value for word in range(2))
    size_bytes = noted & ~_FLAGS
    begin, end = header - before, header + size_bytes
    own.malloc_usable_size.argtypes = [ctypes.c_void_p]
    own.malloc_usable_size.restype = ctypes.c_size_t
    return (
        noted & _FLAGS == _IS_MAPPED
        and begin % mmap.PAGESIZE == 0 == end % mmap.PAGESIZE
        and own.malloc_usable_size(address) == size_bytes - _HEADER_BYTES
    )


def _glibc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:
        return None


def _function(library: ctypes.CDLL) -> int | None:
    return ctypes.cast(library.malloc, ctypes.c_void_p).value


def _address(content: memoryview) -> int:
    return int(np.frombuffer(content, np.uint8).ctypes.data)


def _tell(num_bytes: int, reason: str) -> None:
    logger.debug(
        "%d MB of data are in memory twice, for this process and for workers: %s.",
        num_bytes >> 20,
        reason,
    )
