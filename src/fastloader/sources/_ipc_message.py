"""Record batches of an Arrow IPC file: where they lie, and parts of them read alone."""

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from fastloader.errors import SourceError
from fastloader.sources._flatbuffer import FlatTable, HeaderError

__all__ = [
    "BatchHeader",
    "buffer_paths",
    "find_batches",
    "is_little_endian",
    "read_footer",
    "without_dictionaries",
]

_MAGIC = b"ARROW1"
_TAIL_BYTES = 10  # length of the footer, and the magic once more
_BLOCK = struct.Struct("<qi4xq")
_PAIR = struct.Struct("<qq")
_MAX_ROWS_PER_BYTE = 10_000
"""Even of rows that are all alike, compressed: more is taken for damage."""
_MAX_VALUES_PER_BYTE = 1 << 16
"""Twice as many as zstd makes of zeros: Arrow would look at all that a damaged file claims."""
_ALIGNMENT_BYTES = 8
_RECORD_BATCH = 3  # its number among the kinds of messages
_MAX_HEADER_BYTES = 64 << 20
_CODECS = {0: "lz4", 1: "zstd"}


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What the file says of one record batch before its values."""

    num_rows: int
    """Number of rows."""
    codec: str | None
    """What its buffers are compressed by, as Arrow calls it; None if they are not."""
    header: bytes
    """The message without its values."""
    header_at: int
    """Where in the file it lies."""
    buffers_at: int
    """Where in `header` the list of buffers starts: offset and length of each."""
    num_buffers: int
    """Number of buffers."""
    body_at: int
    """Where in the file the values start."""
    body_bytes: int
    """Length of all values."""

    def place(self, number: int) -> tuple[int, int]:
        """Return where in the file's values of the batch a buffer starts, and its length.

        Args:
            number: Of the buffer.

        Raises:
            HeaderError: If it lies outside the batch.
        """
        start, size = _PAIR.unpack_from(self.header, self.buffers_at + _PAIR.size * number)
        if size and (start < 0 or size < 0 or start + size > self.body_bytes):
            raise HeaderError(f"buffer {number} of a record batch lies outside of it")
        return start, size

    def keep_mapped(self, mapping: mmap.mmap, is_kept: np.ndarray) -> None:
        """Let whoever reads the batch in memory find only some of its buffers.

        Nothing is copied but the list of buffers, which is written anew.

        Args:
            mapping: The file, of which a private copy may be written to.
            is_kept: Which buffers to find, shape ``(num_buffers,)``; others must not be looked
                at.

        Raises:
            HeaderError: If a buffer lies outside the batch.
        """
        places = np.frombuffer(self.header, np.int64, 2 * self.num_buffers, self.buffers_at)
        places = places.reshape(-1, 2).copy()
        places[~is_kept, 1] = 0
        start, size = places.T
        is_outside = (start < 0) | (size < 0) | (start > self.body_bytes - size)
        if (is_outside & (size != 0)).any():
            self.place(int(np.argmax(is_outside & (size != 0))))
        at = self.header_at + self.buffers_at
        mapping[at : at + places.nbytes] = places.tobytes()

    def read(
        self, file: pa.NativeFile, schema: pa.Schema, is_kept: np.ndarray
    ) -> pa.RecordBatch:
        """Read some of the buffers; others are left empty and must not be looked at.

        Args:
            file: The file, open.
            schema: Of all columns.
            is_kept: Which buffers to read, shape ``(num_buffers,)``.

        Raises:
            HeaderError: If a buffer lies outside the batch.
        """
        header = bytearray(self.header)
        body: list[bytes] = []
        length = 0
        for number in range(self.num_buffers):
            at = self.buffers_at + _PAIR.size * number
            start, size = self.place(number)
            if not is_kept[number] or size == 0:
                _PAIR.pack_into(header, at, length, 0)
                continue
            _PAIR.pack_into(header, at, length, size)
            padding = -size % _ALIGNMENT_BYTES
            body += [file.read_at(size, self.body_at + start), bytes(padding)]
            length += size + padding
        _write_body_length(header, length)
        message = b"".join([struct.pack("<iI", -1, len(header)), bytes(header), *body])
        return ipc.read_record_batch(ipc.read_message(pa.py_buffer(message)), schema)


def read_footer(file: pa.NativeFile, path: str) -> bytes:
    """Return the footer of a file.

    Args:
        file: The file, open.
        path: The same, as error messages name it.

    Raises:
        SourceError: If there is none.
    """
    size = file.size()
    tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    footer_bytes = int.from_bytes(tail[:4], "little", signed=True)
    if tail[4:] != _MAGIC or not 0 < footer_bytes <= size - _TAIL_BYTES - 8:
        raise SourceError(
            f"{path} is no Arrow IPC file, or its end is cut off: {size} bytes that do not end "
            f"in a footer. (The streaming format has none: write an IPC file, or Feather.)"
        )
    return bytes(file.read_at(footer_bytes, size - _TAIL_BYTES - footer_bytes))


def is_little_endian(footer: bytes) -> bool:
    """Return whether the numbers of a file are as this machine has them.

    Raises:
        HeaderError: If it is cut off.
    """
    schema = FlatTable.root(footer).table(1)
    return schema is not None and schema.number(0, "<h") == 0


def find_batches(file: pa.NativeFile, footer: bytes) -> list[BatchHeader]:
    """Return the headers of all record batches of a file.

    Args:
        file: The file, open.
        footer: Its footer.

    Raises:
        HeaderError: If one lies outside the file or is no record batch.
    """
    start, count = FlatTable.root(footer).vector(3, _BLOCK.size)
    file_bytes = file.size()
    headers = []
    for number in range(count):
        at, header_bytes, body_bytes = _BLOCK.unpack_from(footer, start + number * _BLOCK.size)
        is_inside = at >= 0 and 8 <= header_bytes <= _MAX_HEADER_BYTES and body_bytes >= 0
        if not is_inside or at + header_bytes + body_bytes > file_bytes:
            raise HeaderError(f"record batch {number} lies outside the file")
        content = file.read_at(header_bytes, at)
        # Before version 0.15 of Arrow there was no mark in front of the length.
        prefix = 8 if content[:4] == b"\xff\xff\xff\xff" else 4
        body_at = at + header_bytes
        headers.append(_header_of(content[prefix:], at + prefix, body_at, body_bytes, number))
    return headers


def buffer_paths(schema: pa.Schema) -> list[tuple[str, ...]] | None:
    """Return which field each buffer of a record batch belongs to, by the names on the way to it.

    Returns:
        None if the number of buffers cannot be told from the types alone.

    Raises:
        UnicodeDecodeError: If a name is no text, also one below a type of which that is so.
    """
    paths: list[tuple[str, ...]] = []
    return paths if _add_paths(without_dictionaries(schema), (), paths) else None


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return a schema by which batches are read alone, of columns that stay as they are.

    What columns with a dictionary refer to is in batches of its own: here they are the numbers
    that refer to it.
    """
    return pa.schema([
        field.with_type(field.type.index_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ])


def _header_of(
    header: bytes, header_at: int, body_at: int, body_bytes: int, number: int
) -> BatchHeader:
    """Read a message's header.

    Raises:
        HeaderError: If it is no record batch.
    """
    message = FlatTable.root(header)
    batch = message.table(2)
    if message.number(1, "<B") != _RECORD_BATCH or batch is None:
        raise HeaderError(f"block {number} is no record batch")
    num_rows = batch.number(0, "<q")
    if not 0 <= num_rows <= _MAX_ROWS_PER_BYTE * (body_bytes + 1):
        raise HeaderError(f"record batch {number} has {num_rows} rows in {body_bytes} bytes")
    nodes_at, num_nodes = batch.vector(1, _PAIR.size)
    nodes = np.frombuffer(header, "<i8", 2 * num_nodes, nodes_at).reshape(-1, 2)
    lengths, null_counts = nodes.T
    wrong = (null_counts < 0) | (null_counts > lengths)  # Arrow would end the process
    if wrong.any():
        length, null_count = nodes[wrong.argmax()].tolist()
        raise HeaderError(f"record batch {number} has {null_count} nulls of {length} values")
    most = int(lengths.max(initial=0))
    if most > _MAX_VALUES_PER_BYTE * (body_bytes + 1):
        raise HeaderError(f"record batch {number} has {most} values in {body_bytes} bytes")
    buffers_at, num_buffers = batch.vector(2, _PAIR.size)
    compression = batch.table(3)
    return BatchHeader(
        num_rows=num_rows,
        codec=None if compression is None else _codec_name(compression),
        header=header,
        header_at=header_at,
        buffers_at=buffers_at,
        num_buffers=num_buffers,
        body_at=body_at,
        body_bytes=body_bytes,
    )


def _codec_name(compression: FlatTable) -> str:
    """Return the name of a compression.

    Raises:
        HeaderError: If there is none of its number.
    """
    number = compression.number(0, "<b")
    if number not in _CODECS:
        raise HeaderError(f"a record batch is compressed by number {number}, which is unknown")
    return _CODECS[number]


def _write_body_length(header: bytearray, length: int) -> None:
    place = FlatTable.root(bytes(header)).place(3)
    if place is not None:  # or there are no values
        struct.pack_into("<q", header, place, length)


_PLAIN_KINDS = (
    *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("s")),
    *(pa.duration("s"), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.list_(pa.null()), pa.large_list(pa.null()), pa.list_(pa.null(), 1), pa.struct([])),
)
_NUM_BUFFERS = {kind.id: kind.num_buffers for kind in _PLAIN_KINDS} | {pa.null().id: 0}
"""Of a value of each kind by its number; without its children."""


def _add_paths(
    fields: Iterable[pa.Field], path: tuple[str, ...], paths: list[tuple[str, ...]]
) -> bool:
    """Add the paths of the buffers of fields and of those below them; False if some are not known."""
    is_known = True
    for field in fields:
        kind, name = field.type, field.name
        within = (*path, name)
        paths += [within] * _NUM_BUFFERS.get(kind.id, 0)
        is_known &= kind.id in _NUM_BUFFERS
        if kind.num_fields:
            is_known &= _add_paths(_children(kind), within, paths)
    return is_known


def _children(kind: pa.DataType) -> Iterable[pa.Field]:
    if pa.types.is_struct(kind):
        return kind  # type: ignore[no-any-return]
    return [kind.value_field] if hasattr(kind, "value_field") else []
