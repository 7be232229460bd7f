"""Writes a stream of record batches as a table of any format."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from fastloader.errors import SettingsError
from fastloader.sources import FORMATS, import_extra

__all__ = ["TABLE_FORMATS", "TableFormat", "choose_format"]

Batches: TypeAlias = Iterable[pa.RecordBatch]
WriteTable: TypeAlias = Callable[[Path, pa.Schema, Batches, str | None], None]


_PAGE_BYTES = 64 << 10
_ZSTD_LEVEL = 3
"""Of real images Arrow's own, 1, makes 6 to 30 % more, which are read no sooner, in 0.6 to 0.9 of the time."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A format that tables can be written in."""

    suffixes: tuple[str, ...]
    """Endings of names, the usual one first, by which it is also recognised when read."""
    write: WriteTable
    """Takes a path that does not exist, schema, record batches and the name of a codec."""
    is_compressed_by: tuple[str | None, ...]
    """Codecs there are to choose from, the usual one first."""
    gives_rows_singly: bool = True
    """False where one row of a compressed group takes all pixels before it to be decompressed, too."""


def _write_parquet(
    path: Path, schema: pa.Schema, batches: Batches, compression: str | None
) -> None:
    with pq.ParquetWriter(
        path,
        schema,
        compression=compression or "none",
        compression_level=_ZSTD_LEVEL if compression == "zstd" else None,
        # A dictionary of pixels would be all of them, once more in memory.
        use_dictionary=[name for name in _leaves(schema) if not name.endswith("pixel_bytes")],
        write_page_checksum=True,
        # Pages are closed when they are full, which is looked at after each batch of values only.
        # With one image in a page, one row costs no more than that.
        write_batch_size=1,
        data_page_size=_PAGE_BYTES,
    ) as writer:
        for batch in batches:
            writer.write_batch(batch, row_group_size=max(1, batch.num_rows))


def _write_ipc(
    path: Path, schema: pa.Schema, batches: Batches, compression: str | None
) -> None:
    codec = pa.Codec("zstd", _ZSTD_LEVEL) if compression == "zstd" else compression
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with (
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, schema, options=options) as w,
    ):
        for batch in batches:
            w.write_batch(batch)


def _write_lance(
    path: Path, schema: pa.Schema, batches: Batches, compression: str | None
) -> None:
    # The first it refuses itself; columns with the second it writes, but cannot read.
    if odd := [name for name in schema.names if set(name) & set(".`")]:
        raise SettingsError(
            f"Lance has no columns with a dot or backtick in their names: rename {odd}."
        )
    lance = import_extra("lance", "lance", "Writing Lance")
    # Lance compresses bytes of this size by zstd where nobody says otherwise.
    note = {"lance-encoding:compression": compression or "none"}
    noted = pa.schema([_with_note(field, "pixel_bytes", note) for field in schema])
    with _made_apart(noted, batches) as reader:
        lance.write_dataset(reader, str(path))


def _write_duckdb(
    path: Path, schema: pa.Schema, batches: Batches, compression: str | None
) -> None:
    from fastloader.writing._duckdb_table import write_duckdb  # noqa: PLC0415 - an extra

    write_duckdb(path, schema, batches, compression)


def _write_vortex(
    path: Path, schema: pa.Schema, batches: Batches, compression: str | None
) -> None:
    del compression  # Vortex chooses
    io = import_extra("vortex.io", "vortex", "Writing Vortex")
    with _made_apart(schema, batches) as reader:
        io.write(reader, str(path))


def _with_note(field: pa.Field, name: str, note: Mapping[str, str]) -> pa.Field:
    """Return a field with metadata at those of a name among it and the fields of its structs.

    Args:
        field: Of any type.
        name: Of the fields that get the metadata.
        note: Metadata.
    """
    kind = field.type
    if field.name == name:
        return field.with_metadata(note)
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_with_note(one, name, note) for one in kind]))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_with_note(kind.value_field, name, note)))
    return field


@contextmanager
def _made_apart(schema: pa.Schema, batches: Batches) -> Iterator[pa.RecordBatchReader]:
    """Give a stream of batches that are made in a thread of Python, one when it is asked for.

    Libraries ask from threads of their own, which are new to Python each time: all that code
    keeps for its thread ends with each batch, and an open Arrow file ended the process then.

    Args:
        schema: Of the batches.
        batches: Any number.

    Yields:
        The stream.

    Raises:
        BaseException: What came up while batches were made, Ctrl-C among it, and not what the
            library makes of it.
    """
    own: list[BaseException] = []
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(
            iter, batches
        ).result()  # starts the thread, which a foreign one cannot

        def hand_over() -> Iterator[pa.RecordBatch]:
            try:
                while (batch := pool.submit(next, left, None).result()) is not None:
                    yield batch
            except GeneratorExit:
                raise
            except BaseException as error:
                own.append(error)
                raise

        try:
            yield pa.RecordBatchReader.from_batches(schema, hand_over())
        except Exception as error:
            if own:
                raise own[0] from error
            raise


def _format(
    name: str,
    write: WriteTable,
    codecs: tuple[str | None, ...] = ("zstd",),
    *,
    gives_rows_singly: bool = True,
) -> TableFormat:
    return TableFormat(FORMATS[name].suffixes, write, codecs, gives_rows_singly)


TABLE_FORMATS: Mapping[str, TableFormat] = {
    "parquet": _format("parquet", _write_parquet, ("zstd", "lz4", None)),
    "arrow": _format("arrow", _write_ipc, ("zstd", "lz4", None), gives_rows_singly=False),
    "lance": _format("lance", _write_lance, (None, "zstd")),
    "duckdb": _format("duckdb", _write_duckdb, (None, "zstd")),
    "vortex": _format("vortex", _write_vortex),
}
"""Formats by name."""


def choose_format(path: Path, name: str | None, compression: str | None) -> TableFormat:
    """Return the format to write.

    Args:
        path: Where to; its ending tells the format if `name` does not.
        name: A name of `TABLE_FORMATS`, or None.
        compression: Codec asked for, "auto" for the usual one.

    Raises:
        SettingsError: If there is no such format, or it has no such codec.
    """
    if name is None:
        endings = path.name.lower()
        fits = [known for known, one in TABLE_FORMATS.items() if endings.endswith(one.suffixes)]
        name = fits[0] if fits else None
    if name not in (*TABLE_FORMATS,):
        endings = ", ".join(one.suffixes[0] for one in TABLE_FORMATS.values())
        raise SettingsError(
            f"{path} does not tell its format: expected a name that ends in one of {endings}, "
            f"or format= with one of {', '.join(TABLE_FORMATS)}."
        )
    chosen = TABLE_FORMATS[name]
    if compression not in ("auto", *chosen.is_compressed_by):
        raise SettingsError(
            f"compression={compression!r}: {name} can have "
            f"{', '.join(map(str, chosen.is_compressed_by))}."
        )
    return chosen


def _leaves(schema: pa.Schema) -> list[str]:
    """Return the dotted paths of all columns of numbers, texts or bytes, as Parquet has them."""
    metadata = pq.ParquetFile(_empty_file(schema)).schema
    return [metadata.column(position).path for position in range(len(metadata))]


def _empty_file(schema: pa.Schema) -> pa.BufferReader:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    return pa.BufferReader(sink.getvalue())
