"""Numbers in a pipe, from which every process takes the next one."""

import os
from collections.abc import Iterable
from typing import Self

__all__ = ["NumberPipe"]

_NUMBER_BYTES = 4
_MOST_NUMBERS = (1 << 15) // _NUMBER_BYTES  # an empty pipe takes them all at once


class NumberPipe:
    """A few thousand numbers at most, each of which one process gets.

    **Processes:** made by one, which puts numbers in; children inherit the end to read from. A
    read of four bytes gives a whole number, since the pipe holds nothing else.
    """

    def __init__(self, reader: int, writer: int | None = None) -> None:
        """Take over the ends of a pipe.

        Args:
            reader: Its end to read from.
            writer: Its end to write to; None where others write.
        """
        self._reader = reader
        self._writer = writer

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Make a pipe with numbers in it.

        Args:
            numbers: At most 8,192, each from 0 to 2**32 - 1.

        Raises:
            ValueError: If there are more.
        """
        content = b"".join(number.to_bytes(_NUMBER_BYTES, "little") for number in numbers)
        if len(content) > _MOST_NUMBERS * _NUMBER_BYTES:
            raise ValueError(
                f"A pipe takes {_MOST_NUMBERS} numbers, but got {len(content) // _NUMBER_BYTES}."
            )
        pipe = cls(*os.pipe())
        assert pipe._writer is not None  # noqa: S101 - was made now
        os.write(pipe._writer, content)
        return pipe

    def fileno(self) -> int:
        """Return the end to read from."""
        return self._reader

    def take(self) -> int | None:
        """Return a number that nobody else takes; None at the end, else waits for one."""
        number = os.read(self._reader, _NUMBER_BYTES)
        return int.from_bytes(number, "little") if number else None

    def put(self, number: int) -> None:
        """Put one more number in.

        Args:
            number: From 0 to 2**32 - 1.
        """
        assert self._writer is not None  # noqa: S101 - only whoever made it puts numbers in
        os.write(self._writer, number.to_bytes(_NUMBER_BYTES, "little"))

    def end(self) -> Self:
        """Let nothing more come, and return the pipe."""
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        os.close(self._reader)
