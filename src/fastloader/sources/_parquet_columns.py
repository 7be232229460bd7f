"""Columns of a Parquet file that hold no images, those of its partition among them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fastloader.sources._column_values import channel_names, column_values
from fastloader.sources._computable import computable_field
from fastloader.sources._conditions import (
    columns_of,
    explaining,
    scan_condition,
    statistics_suffice,
)
from fastloader.sources._description import ImageDescription, described_fields, described_images
from fastloader.sources._ome_arrow_layout import refuse_column
from fastloader.sources._parquet_handle import ParquetHandle
from fastloader.sources._protocol import ColumnValues

__all__ = ["ParquetColumns"]

Integers: TypeAlias = npt.NDArray[np.int64]

_META_ROWS = 4096
_FLOATS = {"FLOAT", "DOUBLE"}  # Arrow compares no others


class ParquetColumns:
    """Reads values beside the images, and finds rows by them.

    **Processes:** as the file; see `ParquetHandle`.
    """

    def __init__(
        self,
        file: ParquetHandle,
        names: tuple[str, ...],
        partition: Mapping[str, Any],
        missing_numbers: Collection[str] = (),
    ) -> None:
        """Take what there is.

        Args:
            file: The file.
            names: Columns of it.
            partition: Columns that the file's folder gives, of one value each.
            missing_numbers: Names of those whose value is None, and a number elsewhere.
        """
        self._missing_numbers = tuple(missing_numbers)
        self._file = file
        self._partition = {
            name: value for name, value in partition.items() if name not in names
        }
        self.names = (*names, *self._partition)
        """Columns of the file and of its partition."""

    def read(self, name: str) -> ColumnValues:
        """Return the values of a column.

        Raises:
            SourceError: If there is no such column or it cannot be read.
        """
        if name in self._partition:
            value = self._partition[name]
            num_rows = int(self._file.group_starts[-1])
            if isinstance(value, int):
                return np.full(num_rows, value, np.int64)
            return [value] * num_rows
        if name not in self.names:
            schema = self._file.open().schema_arrow
            refuse_column(name, self.names, schema, self._file.path)
        with self._file.reading():
            file = self._file.open()
            tables = [
                file.read_row_groups(groups, columns=[name], use_threads=False)
                for groups in self._file.streams(range(file.num_row_groups))
            ]
            schema = pa.schema([file.schema_arrow.field(name)])
            table = pa.concat_tables(tables) if tables else schema.empty_table()
            return column_values(table.column(name), f"{self._file.path}, column {name!r}")

    def read_channel_names(self, image_column: str) -> list[tuple[str | None, ...]]:
        """Return the names of the channels of each image; of none for a row without image.

        Raises:
            SourceError: If the file cannot be read.
        """
        prefix = f"{image_column}.pixels_meta.channels."
        leaves = [
            path
            for path in self._file.leaf_paths
            if path.startswith(prefix) and path.endswith(".name")
        ]
        if not leaves:
            return [()] * int(self._file.group_starts[-1])
        names: list[tuple[str | None, ...]] = []
        with self._file.reading():
            for batch in self._batches(leaves):
                names += channel_names(batch.column(0))
        return names

    def iterate_descriptions(self, image_column: str) -> Iterator[ImageDescription]:
        """Yield what is known of each image beside its pixels, row after row.

        Raises:
            SourceError: If the file cannot be read.
        """
        with self._file.reading():
            kind = self._file.open().schema_arrow.field(image_column).type
            wanted = [f"{image_column}.{name}" for name in described_fields(kind)]
            for batch in self._batches(wanted):
                yield from described_images(batch.column(0), self._file.path)

    def find_rows(self, condition: pc.Expression) -> Integers:
        """Return the numbers of the rows that meet a condition, ascending.

        Row groups whose statistics exclude it are not read, unless floats that are no number, of
        which statistics do not tell, may meet it.

        Args:
            condition: Over `names`; where it is null, a row is left out.

        Raises:
            SettingsError: If the condition does not fit the columns.
            SourceError: If the file cannot be read.
        """
        names = columns_of(condition, self.names)
        stored_names = [name for name in names if name not in self._partition]
        leaves = [
            leaf
            for leaf, path in enumerate(self._file.leaf_paths)
            if path.partition(".")[0] in names
        ]
        self._file.check_columns(leaves)
        with self._file.reading(), explaining(condition, self._file.path):
            fragment = self._file.fragment(self._partition_expression())
            stored = fragment.physical_schema
            schema = pa.schema(map(computable_field, stored))
            # Statistics are of the type that is stored, also of such that Arrow cannot compare.
            are_stored = all(schema.field(name) == stored.field(name) for name in stored_names)
            for name, value in self._partition.items():
                is_number = isinstance(value, int) or name in self._missing_numbers
                schema = schema.append(pa.field(name, pa.int64() if is_number else pa.string()))
            found = [np.zeros(0, np.int64)]
            if are_stored and (statistics_suffice(condition) or not self._have_floats(leaves)):
                fragment = fragment.subset(filter=condition, schema=schema)
            for group in fragment.row_groups:
                one = fragment.subset(row_group_ids=[group.id])
                is_met = scan_condition(one, condition, schema)
                found.append(self._file.group_starts[group.id] + np.flatnonzero(is_met))
        return np.concatenate(found)

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of all rows."""
        file = self._file.open()
        for groups in self._file.streams(range(file.num_row_groups)):
            yield from file.iter_batches(
                _META_ROWS, row_groups=groups, columns=list(columns), use_threads=False
            )

    def _have_floats(self, leaves: Sequence[int]) -> bool:
        schema = self._file.open().schema
        return any(schema.column(leaf).physical_type in _FLOATS for leaf in leaves)

    def _partition_expression(self) -> pc.Expression | None:
        parts = [
            pc.field(name).is_null() if value is None else pc.field(name) == value
            for name, value in self._partition.items()
        ]
        return reduce(and_, parts) if parts else None
