"""Values of pages decoded by Arrow as a column of their own, without the lists that they were in.

Arrow decodes pixels in lists at a tenth of the speed of those in no list, nearly all of it for
the levels that say where lists start. Those of images are few, and known (`_parquet_levels`).
So the values alone are put into a Parquet file in memory that has one column and no lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastloader.sources._thrift import Long, ThriftFields, encode_fields

__all__ = ["EncodedValues", "FlatType", "decode_values", "decompress_by_arrow"]

_MAGIC = b"PAR1"
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_FIXED_LENGTH_BYTES = 7
_CODECS = {"uncompressed": 0, "snappy": 1, "gzip": 2, "brotli": 4, "zstd": 6, "lz4": 7}


@dataclass(frozen=True, slots=True)
class FlatType:
    """A type of values, by the numbers of Parquet."""

    physical: int
    converted: int | None = None
    """What the physical type stands for, such as an integer of 16 bits."""
    length: int | None = None
    """Of bytes of fixed length."""


@dataclass(frozen=True, slots=True)
class EncodedValues:
    """Values of a page, or of a dictionary."""

    encoding: int
    num_values: int
    content: memoryview | pa.Buffer


def decode_values(
    kind: FlatType, dictionary: EncodedValues | None, pages: Sequence[EncodedValues]
) -> pa.ChunkedArray:
    """Return the values of pages, one page after the other.

    Args:
        kind: Their type.
        dictionary: What they refer to, if they do.
        pages: At least one.

    Raises:
        pyarrow.ArrowException: If they cannot be decoded.
        OSError: The same, and if there are fewer than there should be.
    """
    parts: list[memoryview | pa.Buffer | bytes] = [_MAGIC]
    if dictionary is not None:
        size = len(dictionary.content)
        about: ThriftFields = {1: dictionary.num_values, 2: _PLAIN}
        parts += [encode_fields({1: _DICTIONARY_PAGE, 2: size, 3: size, 7: about})]
        parts += [dictionary.content]
    data_at = sum(map(len, parts))
    for page in pages:
        size = len(page.content)
        about = {1: page.num_values, 2: page.encoding, 3: _RLE, 4: _RLE}
        parts += [encode_fields({1: _DATA_PAGE, 2: size, 3: size, 5: about}), page.content]
    num_values = sum(page.num_values for page in pages)
    size = sum(map(len, parts)) - len(_MAGIC)
    return _read(kind, parts, num_values, size, data_at, dictionary is not None, "uncompressed")


def decompress_by_arrow(content: memoryview, num_bytes: int, codec: str) -> pa.Buffer:
    """Return bytes decompressed, as one value of bytes, whose length Arrow checks.

    Args:
        content: Compressed.
        num_bytes: Length when decompressed, at least 1.
        codec: Name in lower case.

    Raises:
        ValueError: If there is no such codec.
        pyarrow.ArrowException: If they cannot be decompressed.
        OSError: The same, and if they are fewer or more.
    """
    if codec not in _CODECS:
        raise ValueError(f"compression by {codec}")
    about: ThriftFields = {1: 1, 2: _PLAIN, 3: _RLE, 4: _RLE}
    header = encode_fields({1: _DATA_PAGE, 2: num_bytes, 3: len(content), 5: about})
    kind = FlatType(_FIXED_LENGTH_BYTES, length=num_bytes)
    size = len(header) + len(content)
    values = _read(kind, [_MAGIC, header, content], 1, size, len(_MAGIC), False, codec)
    return values.chunk(0).buffers()[1]


def _read(
    kind: FlatType,
    parts: list[memoryview | pa.Buffer | bytes],
    num_values: int,
    num_bytes: int,
    data_at: int,
    has_dictionary: bool,
    codec: str,
) -> pa.ChunkedArray:
    """Return the column of a file that these pages make."""
    encodings = [_PLAIN, _RLE, *([_RLE_DICTIONARY] if has_dictionary else [])]
    column: ThriftFields = {
        1: kind.physical,
        2: encodings,
        3: [b"values"],
        4: _CODECS[codec],
        5: Long(num_values),
        6: Long(num_bytes),
        7: Long(num_bytes),
        9: Long(data_at),
    }
    if has_dictionary:
        column[11] = Long(len(_MAGIC))
    required = 0
    leaf: ThriftFields = {1: kind.physical}
    if kind.length is not None:
        leaf[2] = kind.length
    leaf |= {3: required, 4: b"values"}
    if kind.converted is not None:
        leaf[6] = kind.converted
    group: ThriftFields = {
        1: [{2: Long(0), 3: column}],
        2: Long(num_bytes),
        3: Long(num_values),
    }
    footer = encode_fields({
        1: 2,
        2: [{4: b"schema", 5: 1}, leaf],
        3: Long(num_values),
        4: [group],
    })
    file = _joined([*parts, footer, len(footer).to_bytes(4, "little"), _MAGIC])
    opened = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False)
    return opened.read(use_threads=False).column(0)


def _joined(parts: Sequence[memoryview | pa.Buffer | bytes]) -> pa.Buffer:
    # Memory of Arrow's pool is used again, where that of Python is taken fresh page by page.
    joined = pa.allocate_buffer(sum(map(len, parts)))
    content = np.frombuffer(joined, np.uint8)
    at = 0
    for part in parts:
        content[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    return joined
