"""Columns in types that Arrow can compute with: for others it has hardly any function."""

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["computable_field", "computable_table"]

_COMPUTABLE = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
    pa.float16(): pa.float32(),
}


def computable_table(table: pa.Table) -> pa.Table:
    """Return a table with the same values in the types of `computable_field`.

    Raises:
        pyarrow.ArrowException: If Arrow cannot convert a column.
    """
    schema = pa.schema(map(computable_field, table.schema))
    columns = [
        _converted(column, field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def computable_field(field: pa.Field) -> pa.Field:
    """Return a field whose values are as before, also those in lists and structs.

    Views of texts and bytes are large ones, half floats are single, what is encoded by runs is
    not, and types of somebody's own are what they are stored as.
    """
    return field.with_type(_computable(field.type))


def _computable(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_run_end_encoded(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _computable(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct(map(computable_field, kind))
    if pa.types.is_list(kind):
        return pa.list_(computable_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(computable_field(kind.value_field))
    return _COMPUTABLE.get(kind, kind)


def _converted(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if column.type == kind or not pa.types.is_dictionary(kind):
        return column.cast(kind)
    # Arrow cannot cast one dictionary to another.
    chunks = [
        pa.DictionaryArray.from_arrays(
            chunk.indices, chunk.dictionary.cast(kind.value_type), ordered=kind.ordered
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, kind)
