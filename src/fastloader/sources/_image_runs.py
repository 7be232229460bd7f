"""Where the pixels of checked images are in a record batch that is kept, and where they belong."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.sources._pixels_apart import ApartPixels
from fastloader.sources._protocol import WritePixels

__all__ = ["BLOCK_ROWS", "ImageRuns", "KnownRuns"]

Integers: TypeAlias = npt.NDArray[np.int64]

BLOCK_ROWS = 64
"""Rows that are checked together: for one it takes hardly less time."""
_MOST_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class ImageRuns:
    """Runs of pixels of some images, none of which need be looked at any more."""

    bounds: Integers
    """First run of each row, and last their number."""
    to: Integers
    """First byte of each run in its image."""
    start: Integers
    """First item of each run in the record batch."""
    stop: Integers
    """Item after its last."""
    dtype: np.dtype[Any]
    """Of the pixels."""
    are_bytes: bool
    """Whether items are bytes, not pixels."""

    def has(self, row: int) -> bool:
        """Return whether the pixels of a row are known."""
        return bool(self.bounds[row] < self.bounds[row + 1])

    def need(self, row: int, apart: ApartPixels) -> None:
        """Tell which pixels of a row will be taken."""
        runs = slice(self.bounds[row], self.bounds[row + 1])
        apart.need(self.start[runs], self.stop[runs])

    def write(self, row: int, apart: ApartPixels, write: WritePixels, offset: int) -> None:
        """Write the pixels of a row.

        Args:
            row: Of these images.
            apart: Pixels of the record batch.
            write: Puts them in their place.
            offset: Position of the image's first byte there.
        """
        for run in range(self.bounds[row], self.bounds[row + 1]):
            items, to = (
                slice(int(self.start[run]), int(self.stop[run])),
                offset + int(self.to[run]),
            )
            if not apart.write(items, self.dtype, write, to, are_bytes=self.are_bytes):
                write(to, apart[items].view(self.dtype))


class KnownRuns(dict[Any, ImageRuns | None]):
    """What is known of the blocks of a record batch by number and choice of channels.

    None of those that have to be looked at each time.
    """

    def put(self, key: Any, runs: ImageRuns | None) -> None:
        """Note what is known, and forget all else where that is much."""
        if len(self) >= _MOST_BLOCKS:
            self.clear()
        self[key] = runs
