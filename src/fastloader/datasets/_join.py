"""Columns of another table, joined to the rows of a source by key."""

import os
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from fastloader.errors import SettingsError
from fastloader.sources import ColumnValues, ImageSource, arrow_type_of, read_plain_table

__all__ = ["JoinKeys", "join_columns"]

JoinKeys: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""Key columns of the same names on both sides, or names in the source to names in the table."""

_DIGITS = 18
"""Behind the point, of decimals in a file without types, at least."""


def join_columns(
    source: ImageSource,
    table: Any,
    keys: JoinKeys,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return the columns of a table beside those of a source, one value a row of the source.

    Rows of the source whose key the table does not have, or whose key is null, get nulls; rows of
    the table that the source does not have are left out. Keys that are text, bytes, decimals or
    large numbers in the source are so in a CSV file, too: ``007`` stays what it is.

    Args:
        source: Has the key columns.
        table: Path or URL of a CSV, TSV or Parquet file, or a table of pyarrow, pandas or polars.
        keys: The key columns.
        storage_options: Arguments of fsspec's file system, for URLs.

    Raises:
        SourceError: If the table cannot be read.
        SettingsError: If a key column is missing, a key occurs twice in the table, none of the
            source's keys is in it, or other columns have the name of one of the source's.
    """
    pairs = _pairs(keys)
    ours = {
        left: _listed(source.read_column(left)) for left in pairs if left in source.column_names
    }
    types = {
        pairs[left]: kind
        for left, values in ours.items()
        if (kind := _type_in_text(values)) is not None
    }
    if isinstance(table, str | os.PathLike):
        name, content = os.fspath(table), read_plain_table(table, types, storage_options)
    else:
        name, content = "The joined table", _as_table(table)
    _check_names(source, content, name, pairs)
    wanted = list(zip(*ours.values(), strict=True))
    known: dict[tuple[Any, ...], int] = {}
    columns = [content.column(right).to_pylist() for right in pairs.values()]
    _check_keys(columns, name, pairs.values())
    _check_keys(ours.values(), source.where, ours)
    for row, key in enumerate(zip(*columns, strict=True)):
        if None in key:
            continue
        if key in known:
            raise SettingsError(
                f"{name}: rows {known[key]} and {row} both have the key {_shown(key)} in "
                f"{', '.join(pairs.values())}: expected one row for each key."
            )
        known[key] = row
    places = [known.get(key) for key in wanted]
    if wanted and all(place is None for place in places):
        raise SettingsError(
            f"{name} has none of the keys of {source.where}: keys there are like "
            f"{_shown(wanted[0])}, here {_example(known)}. Text and numbers are not equal."
        )
    columns_beside = content.drop_columns(list(dict.fromkeys(pairs.values())))
    return columns_beside.take(pa.array(places, pa.int64()))


def _as_table(table: Any) -> pa.Table:
    """Return a table of another library as one of Arrow.

    Raises:
        SettingsError: If it is none.
    """
    if any(name is not None for name in getattr(getattr(table, "index", None), "names", ())):
        table = table.reset_index()  # of pandas, where keys are often the index
    try:
        return table if isinstance(table, pa.Table) else pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SettingsError(
            f"join= of type {type(table).__name__} is no table ({error}): expected the path of a "
            f"CSV, TSV or Parquet file, or a table of pyarrow, pandas or polars."
        ) from error


def _pairs(keys: JoinKeys) -> dict[str, str]:
    if isinstance(keys, str):
        return {keys: keys}
    if not isinstance(keys, Iterable):
        raise SettingsError(f"join_on={keys!r}: expected the name of a key column, or several.")
    return dict(keys) if isinstance(keys, Mapping) else {key: key for key in keys}


def _check_names(
    source: ImageSource, table: pa.Table, name: str, pairs: Mapping[str, str]
) -> None:
    for where, known, needed in (
        (source.where, source.column_names, pairs.keys()),
        (name, table.column_names, pairs.values()),
    ):
        repeated = sorted({key for key in known if known.count(key) > 1})
        if repeated:
            raise SettingsError(
                f"{where} has several columns {', '.join(map(repr, repeated))}: rename them."
            )
        missing = [key for key in needed if key not in known]
        if missing or not pairs:
            raise SettingsError(
                f"{where} has no key column {', '.join(map(repr, missing)) or 'at all'}; its "
                f"columns are {', '.join(map(repr, known)) or 'none'}. Give join_on= the name, "
                f"or a mapping of the name there to the name in the joined table."
            )
    both = sorted(set(source.column_names) & set(table.column_names) - set(pairs.values()))
    if both:
        raise SettingsError(
            f"{name} and {source.where} both have columns {', '.join(map(repr, both))}: leave "
            f"them out of one, or rename them."
        )


def _check_keys(columns: Iterable[Sequence[Any]], where: str, names: Iterable[str]) -> None:
    """Check that keys are single values.

    Raises:
        SettingsError: If one is a list or has fields.
    """
    for name, values in zip(names, columns, strict=True):
        many = next((value for value in values if isinstance(value, list | dict)), None)
        if many is not None:
            raise SettingsError(
                f"{where}: the key column {name!r} has {many!r:.100}: expected numbers, text or "
                f"other single values to join by."
            )


def _type_in_text(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type that a file without types is to have keys in.

    Returns:
        None where what Arrow makes of the text compares equal by itself: other numbers, times.
    """
    present = [value for value in values if value is not None]
    if all(isinstance(value, str) for value in present):
        return pa.string()
    if all(isinstance(value, bytes) for value in present):
        return pa.binary()
    if all(isinstance(value, Decimal) for value in present):
        return pa.decimal128(38, max(_DIGITS, arrow_type_of(present).scale))
    is_whole = all(isinstance(value, int) for value in present)
    return pa.uint64() if is_whole and arrow_type_of(present) == pa.uint64() else None


def _listed(values: ColumnValues) -> list[Any]:
    return values.tolist() if isinstance(values, np.ndarray) else values


def _example(known: Mapping[tuple[Any, ...], int]) -> str:
    return f"like {_shown(next(iter(known)))}" if known else "there are none"


def _shown(key: tuple[Any, ...]) -> str:
    return repr(key[0]) if len(key) == 1 else repr(key)
