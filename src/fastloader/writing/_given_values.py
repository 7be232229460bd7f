"""What callers give to be written, as arrays and plain values: columns, names and images of any library."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from fastloader.errors import SettingsError, ShapeError
from fastloader.sources import ColumnValues, column_values

__all__ = ["as_array", "column_names", "given_column", "given_names", "plain_value"]


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return an image or a column as an array, also of a tensor on a device or with a gradient.

    Raises:
        ShapeError: If NumPy does not have its type.
    """
    try:
        if isinstance(values, torch.Tensor):
            return values.numpy(force=True)
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        kind = getattr(values, "dtype", type(values).__name__)
        raise ShapeError(
            f"expected values of a type that NumPy has, but got {kind} ({error})."
        ) from error


def given_names(channel_names: Any) -> list[str]:
    """Return names of channels as a list.

    Raises:
        SettingsError: If they are none.
    """
    if channel_names is None:
        return []
    names = list(channel_names) if isinstance(channel_names, Iterable) else [None]
    if isinstance(channel_names, str) or not all(isinstance(name, str) for name in names):
        raise SettingsError(
            f"channel_names={channel_names!r}: expected a list of texts, one for each channel."
        )
    return [str(name) for name in names]


def column_names(columns: Any) -> list[str]:
    """Return the names of columns.

    Raises:
        SettingsError: If it is no mapping of names, also no table of pandas.
    """
    names = list(columns.keys()) if hasattr(columns, "keys") else [None]
    if not all(isinstance(name, str) for name in names):
        raise SettingsError(
            f"columns= of type {type(columns).__name__}: expected names with the values of each, as a "
            f"dict or a table of pandas."
        )
    return [str(name) for name in names]


def given_column(name: str, values: Any) -> ColumnValues:
    """Return a column as sources give it, of a list, an array, or a column of Arrow or pandas.

    Raises:
        SettingsError: If it is none of them.
    """
    if isinstance(values, np.ndarray | torch.Tensor):
        array = as_array(values)
        return array if array.ndim == 1 else array.tolist()
    if isinstance(values, list | tuple | range | str):
        return [one.tolist() if isinstance(one, torch.Tensor) else one for one in values]
    expected = (
        f"columns[{name!r}] of type {type(values).__name__}: expected a list, an array, or a column of "
        f"pyarrow or pandas, with a value for each image"
    )
    if isinstance(values, Mapping):
        raise SettingsError(f"{expected}.")
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SettingsError(f"{expected} ({error}).") from error
    return column_values(
        column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    )


def plain_value(value: Any) -> Any:
    """Return a label as Arrow takes it."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return value.tolist()
    return value
