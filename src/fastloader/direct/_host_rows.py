"""Rows of data in host memory that a device is to read by itself."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["HostRows"]


class _Column(Protocol):
    """A field of all samples, in memory from which a device can copy."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        ...

    def copy_to(
        self, device: torch.device, positions: npt.NDArray[np.int64], /
    ) -> torch.Tensor:
        """Queue a copy of rows on the current stream, and return what will be there."""
        ...


class HostRows:
    """Rows that stand for a tensor of a batch until they are copied to a device.

    They are read when the device copies them, not when this is made: whoever hands the copy to
    the user must wait for it, since the user may change the data from then on.

    Args:
        column: Has the rows.
        positions: Which of them, all inside, shape ``(B,)``.
    """

    __slots__ = ("_column", "_positions")

    def __init__(self, column: _Column, positions: npt.NDArray[np.int64]) -> None:
        self._column = column
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return len(self._positions) * self._column.row_bytes

    def cut(self, lengths: Sequence[int]) -> "list[HostRows]":
        """Return the rows in parts.

        Args:
            lengths: Rows of each part; together all of them.
        """
        parts = np.split(self._positions, np.cumsum(lengths)[:-1])
        return [HostRows(self._column, part) for part in parts]

    def to(self, device: torch.device, **_options: Any) -> torch.Tensor:
        """Queue a copy on the current stream of the device, and return what will be there.

        Args:
            device: An accelerator, with its index.
            **_options: Those of torch's method, of which none matters.
        """
        return self._column.copy_to(device, self._positions)
