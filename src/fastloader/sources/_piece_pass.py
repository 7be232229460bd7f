"""Writes images from chunks first, then from planes those that have none."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.sources._ome_arrow_pixels import PixelWriter
from fastloader.sources._ome_arrow_table import has_pieces
from fastloader.sources._pixels_apart import PieceRows

__all__ = ["PiecePass", "is_among"]

Integers: TypeAlias = npt.NDArray[np.int64]


class PiecePass:
    """Writes images from one kind of pieces, and notes those that have none of them."""

    def __init__(
        self,
        writer: PixelWriter,
        name: str,
        left: Integers,
        on_rows: Callable[[int], None] | None,
        *,
        is_last: bool,
    ) -> None:
        """Take what to write.

        Args:
            writer: Checks it and says where it goes.
            name: ``"chunks"`` or ``"planes"``.
            left: Those of its rows that are still to be written.
            on_rows: Called with the number of images written since the last call.
            is_last: Whether no other pieces come after these.
        """
        self._writer = writer
        self._name = name
        self._left = left
        self._on_rows = on_rows
        self._is_last = is_last
        self._without: list[Integers] = []

    def write(self, batch: PieceRows, row_numbers: Integers) -> None:
        """Write those images of a batch that are wanted and have such pieces."""
        column, apart = batch
        is_wanted = is_among(row_numbers, self._left)
        num_written = 0
        if apart is not None:
            num_written = self._writer.write_known(column, row_numbers, is_wanted, apart)
        if not num_written:
            if not self._is_last:
                has_none = is_wanted & ~has_pieces(column, self._name)
                self._without.append(row_numbers[has_none])
                is_wanted &= ~has_none
            num_written = self._writer.write(column, row_numbers, is_wanted, apart)
        if apart is not None:
            apart.close()
        if self._on_rows is not None and num_written:
            self._on_rows(num_written)

    def without_pieces(self) -> Integers:
        """Return the rows that had no such pieces."""
        return np.concatenate([np.zeros(0, np.int64), *self._without])


def is_among(values: Integers, rows: Integers) -> npt.NDArray[np.bool_]:
    """Return which values are in `rows`, which ascend: `np.isin` sorts both for each batch.

    Args:
        values: Any numbers.
        rows: Each once.
    """
    return np.asarray(rows.searchsorted(values, "right") > rows.searchsorted(values, "left"))
