"""Levels of a Parquet page: where lists start, and where there is nothing in them."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["PageError", "find_lower_levels", "read_packed_numbers", "read_varint"]

Integers: TypeAlias = npt.NDArray[np.int64]

_MAX_PACKED = 1 << 22
"""Writers repeat what is alike: more packed numbers than these are taken apart by Arrow."""
_SHORT_BYTES = 64
_MAX_WIDTH = 32
_MAX_SHIFT = 28


class PageError(Exception):
    """These pages are not for us to read: Arrow's reader can, or says what is wrong."""


def find_lower_levels(
    levels: bytes | memoryview, max_level: int, num_values: int, max_lower: int
) -> tuple[Integers, Integers]:
    """Return the positions of all levels below the highest, ascending, and these levels.

    They come as runs of one level and as short stretches of packed bits. Of lists of pixels
    nearly all are of the highest, in few long runs.

    Args:
        levels: Encoded.
        max_level: The highest there can be; 0 if there are none.
        num_values: How many levels there are.
        max_lower: How many of them can be below the highest.

    Raises:
        PageError: If they make no sense.

    References:
        https://parquet.apache.org/docs/file-format/data-pages/encodings/, run length encoding.
    """
    if not max_level:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    runs = _read_runs(levels, max_level.bit_length(), num_values)
    if max(runs.repeated.max(initial=0), runs.packed.max(initial=0)) > max_level:
        raise PageError("a level is higher than it can be")
    is_lower = runs.packed < max_level
    if is_lower.sum() + runs.lengths[runs.repeated < max_level].sum() > max_lower:
        raise PageError("there are more lists or nulls than there can be")
    positions = [runs.packed_at[is_lower]]
    lower = [runs.packed[is_lower]]
    for run in np.flatnonzero(runs.repeated < max_level).tolist():
        length = int(runs.lengths[run])
        positions.append(runs.repeated_at[run] + np.arange(length))
        lower.append(np.full(length, runs.repeated[run]))
    if len(positions) == 1:
        return positions[0], lower[0]
    found = np.concatenate(positions)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(lower)[order]


def read_packed_numbers(content: memoryview, width: int, num_values: int) -> Integers:
    """Return numbers that are stored as levels are, such as places in a dictionary.

    Args:
        content: Encoded.
        width: Bits of each.
        num_values: How many there are, at least one.

    Raises:
        PageError: If they are cut off.
    """
    numbers = np.zeros(num_values, np.int64)
    if width:
        runs = _read_runs(content, width, num_values)
        numbers[runs.packed_at] = runs.packed
        for run, first in enumerate(runs.repeated_at.tolist()):
            numbers[first : first + int(runs.lengths[run])] = runs.repeated[run]
    return numbers


@dataclass(frozen=True, slots=True)
class _Runs:
    """Numbers as they are stored: some that are repeated, and packed ones."""

    repeated: Integers
    repeated_at: Integers
    """Position of the first of each."""
    lengths: Integers
    """How often each is repeated."""
    packed: Integers
    packed_at: Integers
    """Position of each."""


def _read_runs(encoded: bytes | memoryview, width: int, num_values: int) -> _Runs:
    """Take runs apart, where they are few only once: pages of images alike have the same.

    Raises:
        PageError: If they are cut off, or too many are packed.
    """
    read = _read_again if len(encoded) <= _SHORT_BYTES else _read
    return read(bytes(encoded), width, num_values)


def _read(content: bytes, width: int, num_values: int) -> _Runs:
    """Take runs apart; those of packed numbers are unpacked together, which costs less.

    Raises:
        PageError: If they are cut off, or too many are packed.
    """
    if width > _MAX_WIDTH:
        raise PageError(f"numbers of {width} bits")
    level_bytes = (width + 7) // 8
    repeated: list[tuple[int, int, int]] = []
    packed: list[bytes] = []
    packed_at: list[tuple[int, int]] = []
    at = done = num_packed = 0
    while done < num_values:
        head, at = read_varint(content, at)
        length = head >> 1
        stop = at + (length * width if head & 1 else level_bytes)
        if not length or stop > len(content):
            raise PageError("levels are cut off")
        if head & 1:
            wanted = min(length, (num_values - done + 7) // 8)  # eights; the run may go on
            num_packed += wanted * 8
            if num_packed > _MAX_PACKED:
                raise PageError("too many levels are packed")
            packed.append(content[at : at + wanted * width])
            packed_at.append((done, wanted * 8))
            done += wanted * 8
        else:
            level = int.from_bytes(content[at:stop], "little")
            repeated.append((level, done, min(length, num_values - done)))
            done += length
        at = stop
    levels, starts, lengths = np.array(repeated, np.int64).reshape(-1, 3).T
    first, count = np.array(packed_at, np.int64).reshape(-1, 2).T
    positions = np.repeat(first - (np.cumsum(count) - count), count) + np.arange(count.sum())
    is_there = positions < num_values  # the last are filled up to eight
    numbers = _unpack(b"".join(packed), width)
    return _Runs(levels, starts, lengths, numbers[is_there], positions[is_there])


_read_again = lru_cache(maxsize=256)(_read)


def _unpack(content: bytes, width: int) -> Integers:
    """Return numbers of some bits each."""
    bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
    return np.asarray(bits.reshape(-1, width) @ (1 << np.arange(width, dtype=np.int64)))


def read_varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it.

    Raises:
        PageError: If it is cut off.
    """
    value = shift = 0
    while at < len(content) and shift <= _MAX_SHIFT:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise PageError("levels are cut off")
