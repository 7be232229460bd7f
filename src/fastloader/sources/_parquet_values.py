"""Values of bytes in a Parquet page, as views of it."""

from collections.abc import Callable
from typing import Protocol

from fastloader.sources._page_bytes import PageBytes
from fastloader.sources._parquet_levels import PageError, read_packed_numbers

__all__ = ["ByteValues", "byte_values", "plain_values"]

_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8
_LENGTH_BYTES = 4


class ByteValues(Protocol):
    """Values of a page, or of a dictionary."""

    def get(self, start: int, stop: int) -> list[memoryview]:
        """Return some values; no more of the page is decompressed than that takes.

        Raises:
            PageError: If they are cut off.
        """
        ...


def byte_values(
    body: PageBytes,
    at: int,
    num_values: int,
    encoding: int,
    read_dictionary: Callable[[], ByteValues],
) -> ByteValues:
    """Return the values of a page.

    Args:
        body: What is in the page.
        at: Where its values begin.
        num_values: How many there are.
        encoding: As Parquet numbers it.
        read_dictionary: Returns the values that others refer to.

    Raises:
        PageError: If they are encoded in another way, or refer to what there is not.
    """
    if encoding == _PLAIN:
        return plain_values(body, at, num_values)
    if encoding not in {_PLAIN_DICTIONARY, _RLE_DICTIONARY}:
        raise PageError(f"bytes in the encoding {encoding}")
    content = body.all()[at:]
    if not len(content) and num_values:
        raise PageError("values are cut off")
    numbers = read_packed_numbers(content[1:], content[0], num_values) if num_values else ()
    return _Referring([int(number) for number in numbers], read_dictionary())


def plain_values(body: PageBytes, at: int, num_values: int) -> ByteValues:
    """Return values that each have their length before them.

    Args:
        body: What is in the page.
        at: Where its values begin.
        num_values: How many there are.
    """
    return _Plain(body, at, num_values)


class _Plain:
    def __init__(self, body: PageBytes, at: int, num_values: int) -> None:
        self._body = body
        self._num_values = num_values
        self._parts: list[tuple[int, int]] = []
        self._next = at

    def get(self, start: int, stop: int) -> list[memoryview]:
        if stop > self._num_values:
            raise PageError("a value is not in the dictionary")
        while len(self._parts) < stop:
            first = self._next + _LENGTH_BYTES
            length = self._body.get(self._next, first)
            self._next = first + int.from_bytes(length, "little")
            self._parts.append((first, self._next))
        return [self._body.get(*part) for part in self._parts[start:stop]]


class _Referring:
    def __init__(self, numbers: list[int], entries: ByteValues) -> None:
        self._numbers = numbers
        self._entries = entries

    def get(self, start: int, stop: int) -> list[memoryview]:
        numbers = self._numbers[start:stop]
        return [self._entries.get(number, number + 1)[0] for number in numbers]
