"""Columns beside the images of a dataset's samples: of the source and of a joined table."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastloader.datasets._join import JoinKeys, join_columns
from fastloader.errors import SettingsError
from fastloader.inspection._fingerprint import OwnFingerprint
from fastloader.sources import (
    ColumnValues,
    ImageSource,
    arrow_type_of,
    column_values,
    columns_of,
    matching_rows,
)

__all__ = ["SampleColumns", "take_rows"]

Integers: TypeAlias = npt.NDArray[np.int64]


class SampleColumns(OwnFingerprint):
    """One value of each column for every row of the source, then for the rows that are chosen.

    **Processes:** a pickle holds the values of the joined table, no Arrow object.
    """

    def __init__(
        self,
        source: ImageSource,
        join: Any,
        join_on: JoinKeys | None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the columns of all rows.

        Args:
            source: The images' source.
            join: A table to join, as for `join_columns`, or None.
            join_on: Its key columns.
            storage_options: Arguments of fsspec's file system, for a table at a URL.

        Raises:
            SettingsError: If there is a table without keys, or keys without a table, or they
                do not fit.
            SourceError: If the table cannot be read.
        """
        if (join is None) != (join_on is None):
            raise SettingsError(
                "join= and join_on= go together: the table, and the columns that say which of "
                "its rows belongs to which image."
            )
        self._source = source
        self._rows: Integers | None = None
        self._joined: dict[str, ColumnValues] = {}
        self._joined_table: pa.Table | None = None
        """With the types that conditions are about; let go of once rows are chosen."""
        if join is not None and join_on is not None:
            table = join_columns(source, join, join_on, storage_options)
            self._joined_table = table
            self._joined = {
                name: column_values(table[name], f"The joined table, column {name!r}")
                for name in table.column_names
            }

    def own_fingerprint(self) -> None:
        """Return nothing: columns stay, whatever was read of them and their source so far."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self._source.column_names, *self._joined)

    def read(self, name: str) -> ColumnValues:
        """Return the values of a column, of the chosen rows once they are.

        Raises:
            SourceError: If there is no such column.
        """
        if name in self._joined:
            return self._joined[name]
        values = self._source.read_column(name)
        return values if self._rows is None else take_rows(values, self._rows)

    @cached_property
    def values(self) -> Mapping[str, ColumnValues]:
        """All columns, of the chosen rows once they are."""
        return {name: self.read(name) for name in self.names}

    def find_rows(self, condition: pc.Expression) -> Integers:
        """Return the rows of the source that meet a condition, ascending.

        The source looks for them, so that it need not read all, unless the condition is also
        about joined columns.

        Args:
            condition: Over any of the columns; where it is null, a row is left out.

        Raises:
            SettingsError: If the condition does not fit the columns.
        """
        if not isinstance(condition, pc.Expression):
            raise SettingsError(
                f"filter={condition!r}: expected an expression such as "
                f"pyarrow.compute.field('split') == 'train'."
            )
        names = columns_of(condition, self.names)
        if self._joined_table is None or not set(names) & self._joined.keys():
            return self._source.find_rows(condition)
        table = self._joined_table
        for name in set(names) - self._joined.keys():
            values = self.read(name)
            table = table.append_column(name, pa.array(values, arrow_type_of(values)))
        return matching_rows(table, condition, self._source.where)

    def choose(self, rows: Integers) -> None:
        """Keep the values of some rows."""
        self._rows = rows
        self._joined_table = None
        self._joined = {name: take_rows(values, rows) for name, values in self._joined.items()}


def take_rows(values: ColumnValues, rows: Integers) -> ColumnValues:
    """Return the values of some rows."""
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    return values[rows]
