"""Labels of samples from a column: numbers as they are, anything else as classes or by a mapping."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastloader.errors import SettingsError, SourceError
from fastloader.sources import ColumnValues
from fastloader.tensors._buffers import empty_batch
from fastloader.tensors._gather import gather_rows

__all__ = ["LabelMapping", "Labels"]

LabelMapping: TypeAlias = Mapping[Any, int | float | bool] | Sequence[Any]
"""The number of each value, or the values in the order of their numbers."""


@dataclass(frozen=True, slots=True)
class Labels:
    """One label for each sample."""

    values: torch.Tensor
    """int64, bool or a floating type, shape ``(num_samples,)``, or ``(num_samples, K)`` if each
    label is a list of K numbers."""
    classes: tuple[Any, ...] | None
    """What the numbers 0, 1, ... stand for, if they stand for something."""

    @classmethod
    def of(
        cls, column: ColumnValues, where: str, mapping: LabelMapping | None = None
    ) -> "Labels":
        """Make labels of the values of a column.

        Args:
            column: Numbers, booleans, strings, lists of numbers of one length, or, with a
                `mapping`, anything.
            where: File and column, for error messages.
            mapping: Which number each value gets.

        Raises:
            SourceError: If a value is null or of another type.
            SettingsError: If `mapping` does not have a value.
        """
        if mapping is not None:
            return cls._mapped(column, where, mapping)
        if isinstance(column, list) and None in column:
            raise SourceError(
                f"{where}: label {column.index(None)} is null: expected a label in each row "
                f"that has an image. Leave such rows out with filter=, or give null a number "
                f"with label_mapping=."
            )
        # An array has numbers, also where there are no rows.
        if isinstance(column, list) and all(isinstance(value, str) for value in column):
            return cls._mapped(column, where, sorted(set(column)))
        return cls(_numbers(column, where), None)

    @classmethod
    def _mapped(cls, column: ColumnValues, where: str, mapping: LabelMapping) -> "Labels":
        classes = None
        if not isinstance(mapping, Mapping):
            classes = _in_order(mapping, where)
            mapping = {value: number for number, value in enumerate(classes)}
        values = column.tolist() if isinstance(column, np.ndarray) else column
        nan = next(filter(_is_nan, mapping), None)
        if nan is not None:  # of several NaN none is equal to another, nor to itself
            values = [nan if _is_nan(value) else value for value in values]
        try:
            numbers = [mapping[value] for value in values]
        except (KeyError, TypeError):
            unknown = next(value for value in values if not _is_in(value, mapping))
            raise SettingsError(
                f"{where}: label_mapping has no number for {unknown!r} of sample "
                f"{values.index(unknown)}; it has {list(mapping)[:10]}."
            ) from None
        if classes is not None:  # whole numbers, also where there are no rows
            return cls(torch.tensor(numbers, dtype=torch.int64), classes)
        return cls(_numbers(numbers, where), None)

    def sample(self, index: int) -> Any:
        """Return one label, of a type that collates to the type of `batch`."""
        value = self.values[index]
        return value.clone() if value.is_floating_point() or value.ndim else value.item()

    def batch(self, positions: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return labels, shape ``(len(positions),)`` or ``(len(positions), K)``."""
        out = empty_batch((len(positions), *self.values.shape[1:]), self.values.dtype)
        return gather_rows(self.values, positions, out)


def _in_order(mapping: Any, where: str) -> tuple[Any, ...]:
    """Return labels in the order of their numbers.

    Raises:
        SettingsError: If it is no order of different values, as that of a set is not.
    """
    if not isinstance(mapping, Iterable) or isinstance(mapping, str | bytes | set | frozenset):
        raise SettingsError(
            f"{where}: label_mapping={mapping!r:.100}: expected the number of each label as a dict, "
            f"or a list of the labels in the order of their numbers."
        )
    labels = mapping.tolist() if isinstance(mapping, np.ndarray) else list(mapping)
    places: dict[Any, int] = {}
    for number, label in enumerate(labels):
        if places.setdefault(label, number) != number:
            raise SettingsError(
                f"{where}: label_mapping has {label!r} in places {places[label]} and {number}: expected "
                f"each label once."
            )
    return tuple(labels)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _is_in(value: Any, mapping: Mapping[Any, Any]) -> bool:
    try:
        return value in mapping
    except TypeError:  # a list, say, cannot be a key
        return False


def _numbers(column: ColumnValues, where: str) -> torch.Tensor:
    """Return numbers as a tensor.

    Raises:
        SourceError: If they are none, or do not fit.
    """
    try:
        array = np.asarray(column)
    except ValueError:  # lists of several lengths
        array = np.empty(0, object)
    if array.ndim not in {1, 2} or array.dtype.kind not in "biuf":
        raise SourceError(
            f"{where}: expected labels that are numbers, booleans, strings, or lists of numbers "
            f"of one length, but got {column[0]!r}: give each value a number with "
            f"label_mapping=."
        )
    if array.dtype.kind in "iu":
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise SourceError(f"{where}: label {array.max()} is more than int64 can hold.")
        array = array.astype(np.int64)
    return torch.from_numpy(array.copy())
