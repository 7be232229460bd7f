"""Many texts in one piece of memory, which workers share instead of copying."""

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np

__all__ = ["TextList"]


class TextList(Sequence[str]):
    """Texts behind one another as UTF-8.

    A list of strings would be copied into every worker as it is read, object by object, and
    take a multiple of the memory.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        """Take the texts.

        Args:
            texts: Any; names of files that are no UTF-8 come back as they were.
        """
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._content = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        start, stop = self._ends[position : position + 2]
        return self._content[start:stop].tobytes().decode("utf-8", "surrogateescape")
