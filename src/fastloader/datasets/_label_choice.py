"""Labels from one column, or from several as a dict."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastloader.datasets._labels import Labels
from fastloader.datasets._sample_columns import SampleColumns
from fastloader.errors import SettingsError

__all__ = ["LabelDict", "choose_labels"]


@dataclass(frozen=True, slots=True)
class LabelDict:
    """Labels of several columns: what `Labels` gives of each, in a dict by name."""

    columns: Mapping[str, Labels]
    """The columns."""

    @property
    def values(self) -> dict[str, torch.Tensor]:
        """Labels of all samples."""
        return {name: labels.values for name, labels in self.columns.items()}

    @property
    def classes(self) -> dict[str, tuple[Any, ...] | None]:
        """What the numbers stand for."""
        return {name: labels.classes for name, labels in self.columns.items()}

    def sample(self, index: int) -> dict[str, Any]:
        """Return the labels of one sample."""
        return {name: labels.sample(index) for name, labels in self.columns.items()}

    def batch(self, positions: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """Return the labels of a batch."""
        return {name: labels.batch(positions) for name, labels in self.columns.items()}


def choose_labels(
    columns: SampleColumns,
    names: str | Sequence[str] | None,
    mapping: Any,
    where: str,
) -> Labels | LabelDict | None:
    """Return the labels that a dataset was asked for.

    Args:
        columns: Columns of the samples.
        names: One column, several, or None for no labels.
        mapping: A `LabelMapping` of one column's values; for several columns, a mapping of
            their names to such; None for none.
        where: File and column of the images, for error messages.

    Raises:
        SettingsError: If `names` are none, or `mapping` does not fit.
        SourceError: If a column is missing or has no labels.
    """
    if names is None:
        if mapping is not None:
            raise SettingsError("label_mapping= needs label_column=, whose values it maps.")
        return None
    if isinstance(names, str):
        return Labels.of(columns.read(names), f"{where}, label column {names!r}", mapping)
    if not isinstance(names, Iterable):
        raise SettingsError(
            f"label_column={names!r}: expected the name of a column, or several."
        )
    mappings = mapping or {}
    if not isinstance(mappings, Mapping) or set(mappings) - set(names):
        raise SettingsError(
            f"label_mapping={mapping!r}: with several label columns, expected a mapping of "
            f"names of these, {', '.join(names)}, to the mapping of each."
        )
    return LabelDict({
        name: Labels.of(
            columns.read(name), f"{where}, label column {name!r}", mappings.get(name)
        )
        for name in names
    })
