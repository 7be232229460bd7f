"""Labels of samples from a table's column: numbers as they are, strings as classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloader.errors import SourceError
from fastloader.sources import ColumnValues

__all__ = ["Labels"]


@dataclass(frozen=True, slots=True)
class Labels:
    """One label for each sample."""

    values: torch.Tensor
    """int64, bool or a floating type, shape ``(num_samples,)``."""
    classes: tuple[str, ...] | None
    """What the numbers stand for if the column has strings, sorted."""

    @classmethod
    def of(cls, column: ColumnValues, where: str) -> "Labels":
        """Make labels of the values of a column.

        Args:
            column: Numbers, booleans or strings.
            where: File and column, for error messages.

        Raises:
            SourceError: If a value is null or of another type.
        """
        if isinstance(column, list) and None in column:
            raise SourceError(
                f"{where}: label {column.index(None)} is null: expected a label in each row "
                f"that has an image."
            )
        if all(isinstance(value, str) for value in column):
            classes = tuple(sorted(set(column)))
            codes = {name: code for code, name in enumerate(classes)}
            return cls(
                torch.tensor([codes[name] for name in column], dtype=torch.int64), classes
            )
        array = np.asarray(column)
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise SourceError(
                f"{where}: expected labels that are numbers, booleans or strings, but got "
                f"{column[0]!r}."
            )
        if array.dtype.kind in "iu":
            array = array.astype(np.int64)
        return cls(torch.from_numpy(array.copy()), None)

    def sample(self, index: int) -> Any:
        """Return one label, of a type that collates to the type of `batch`."""
        value = self.values[index]
        return value.clone() if value.is_floating_point() else value.item()

    def batch(self, indices: Sequence[int]) -> torch.Tensor:
        """Return labels, shape ``(len(indices),)``."""
        return self.values[torch.as_tensor(indices, dtype=torch.int64)]
