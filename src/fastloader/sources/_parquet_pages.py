"""The pages of a column chunk of a Parquet file: where they are and what is in them."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from fastloader.sources._page_bytes import PageBytes
from fastloader.sources._page_memory import PageBlocks, PageMemory
from fastloader.sources._parquet_levels import PageError
from fastloader.sources._straight_reads import STRAIGHT_READS
from fastloader.sources._thrift import ThriftError, ThriftFields, read_fields

__all__ = ["ChunkMetadata", "ChunkPages", "Page", "PageContent", "find_pages", "read_page"]

_HEADER_BYTES = 256
_LONG_HEADER_BYTES = 64 << 10
"""Of a header that has statistics of long values."""
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_RLE = 3
_LENGTH_BYTES = 4
_LARGE_BYTES = 4 << 20
"""Of a page. Smaller ones, as those of lists are, take twice as long bit by bit, and little memory in one piece."""
_MAX_PAGES = 1 << 16
_MAX_NUMBER = (1 << 31) - 1
"""Of a header."""
_PLAIN, _PLAIN_DICTIONARY = 0, 2


class ChunkMetadata(Protocol):
    """What a footer says of a column chunk, as in pyarrow."""

    file_path: str
    compression: str
    dictionary_page_offset: int | None
    data_page_offset: int
    num_values: int
    total_compressed_size: int
    total_uncompressed_size: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page, by its header."""

    at: int
    """Position in the file after the header."""
    compressed_bytes: int
    uncompressed_bytes: int
    checksum: int | None
    """CRC-32 of what is stored, if there is one."""
    num_values: int
    """Nulls and empty lists count."""
    encoding: int
    """Of the values, as Parquet numbers them."""
    bare_levels: tuple[int, int] | None = None
    """Bytes of repetition and definition levels where they are stored as they are, in front
    of the values: in pages of version 2."""
    is_compressed: bool = True


@dataclass(frozen=True, slots=True)
class ChunkPages:
    """All pages of a column chunk."""

    codec: str
    """Name of the compression, in lower case."""
    dictionary: Page | None
    """The values that others refer to."""
    pages: Sequence[Page]
    """Pages of values, in order."""


@dataclass(frozen=True, slots=True)
class PageContent:
    """What is in a page of values."""

    repetition: memoryview
    """Repetition levels; empty where there are none."""
    definition: memoryview
    """Definition levels."""
    body: PageBytes
    """What the encoded values are in."""
    values_at: int
    """Where in `body` they begin."""
    blocks: PageBlocks
    """What all of it is in, to be given back."""


def find_pages(file: pa.NativeFile, chunk: ChunkMetadata) -> ChunkPages:
    """Return the pages of a column chunk, of which only the headers are read.

    Args:
        file: The file, open.
        chunk: From the file's footer.

    Raises:
        PageError: If a header makes no sense or a page is of another kind.

    References:
        Apache Parquet, https://parquet.apache.org/docs/file-format/data-pages/.
    """
    first = chunk.data_page_offset
    if chunk.dictionary_page_offset:  # some writers say 0 for none
        first = min(first, chunk.dictionary_page_offset)
    stop = first + chunk.total_compressed_size
    if chunk.file_path or not 0 < first <= stop <= file.size():
        raise PageError("the pages lie elsewhere")
    dictionary: Page | None = None
    pages: list[Page] = []
    left = chunk.num_values
    at = first
    while left > 0:
        if at >= stop or len(pages) == _MAX_PAGES:
            raise PageError("pages are missing")
        header, at = _read_header(file, at, stop)
        page = _page_of(header, at)
        at += page.compressed_bytes
        if at > stop or page.uncompressed_bytes > chunk.total_uncompressed_size:
            raise PageError("a page is larger than its column")
        if header[1] == _DICTIONARY_PAGE:
            if dictionary is not None or pages:
                raise PageError("a second dictionary")
            dictionary = page
            continue
        pages.append(page)
        left -= page.num_values
    if left:
        raise PageError("the pages have more values than the column")
    return ChunkPages(chunk.compression.lower(), dictionary, pages)


def read_page(
    file: pa.NativeFile,
    page: Page,
    codec: str,
    max_levels: tuple[int, int],
    memory: PageMemory,
    *,
    is_whole: bool,
) -> PageContent:
    """Read and decompress a page.

    Args:
        file: The file, open.
        page: The page.
        codec: Name of the compression.
        max_levels: Highest repetition and definition level; 0 where there are none, as in a
            dictionary.
        memory: Where its bytes are put.
        is_whole: Whether most of its values will be looked at.

    Raises:
        PageError: If it is damaged.
    """
    blocks = PageBlocks(memory)
    if is_whole and page.bare_levels is None and page.uncompressed_bytes >= _LARGE_BYTES:
        whole = _read_straight(file, page, codec, memory)
        if whole is not None:
            body = PageBytes(
                whole, page.uncompressed_bytes, "uncompressed", blocks, is_whole=True
            )
            return _content_of(body, max_levels, blocks)
    stored = blocks.take(page.compressed_bytes)
    file.seek(page.at)
    if file.readinto(stored) != page.compressed_bytes:
        raise PageError("a page is cut off")
    if page.checksum is not None and zlib.crc32(stored) != page.checksum:
        raise PageError("a checksum does not fit")
    content = stored
    if page.bare_levels is not None:
        repetition_bytes, definition_bytes = page.bare_levels
        values_at = repetition_bytes + definition_bytes
        num_bytes = page.uncompressed_bytes - values_at
        codec = codec if page.is_compressed else "uncompressed"
        body = PageBytes(content[values_at:], num_bytes, codec, blocks, is_whole=is_whole)
        levels = [content[:repetition_bytes], content[repetition_bytes:values_at]]
        return PageContent(levels[0], levels[1], body, 0, blocks)
    num_bytes = page.uncompressed_bytes
    body = PageBytes(content, num_bytes, codec, blocks, is_whole=is_whole)
    return _content_of(body, max_levels, blocks)


def _read_straight(
    file: pa.NativeFile, page: Page, codec: str, memory: PageMemory
) -> memoryview | None:
    """Return all bytes of a page, without memory for what is stored beside them.

    Returns:
        None if it is damaged, or that cannot be.
    """
    if codec not in STRAIGHT_READS:
        return None
    checksum = 0

    def read(piece: memoryview) -> int:
        nonlocal checksum
        count = int(file.readinto(piece))
        if page.checksum is not None:
            checksum = zlib.crc32(piece[:count], checksum)
        return count

    file.seek(page.at)
    num_stored, num_bytes = page.compressed_bytes, page.uncompressed_bytes
    whole = STRAIGHT_READS[codec](read, num_stored, num_bytes, memory.large)
    return whole.data if whole is not None and page.checksum in {None, checksum} else None


def _content_of(
    body: PageBytes, max_levels: tuple[int, int], blocks: PageBlocks
) -> PageContent:
    """Return what is in a page whose levels stand before its values."""
    levels = []
    at = 0
    for max_level in max_levels:
        start = stop = at
        if max_level:
            start = at + _LENGTH_BYTES
            stop = start + int.from_bytes(body.get(at, start), "little")
        levels.append(body.get(start, stop))
        at = stop
    return PageContent(levels[0], levels[1], body, at, blocks)


def _read_header(file: pa.NativeFile, at: int, stop: int) -> tuple[ThriftFields, int]:
    """Return a header and where it ends.

    Raises:
        PageError: If it makes no sense.
    """
    for num_bytes in (_HEADER_BYTES, _LONG_HEADER_BYTES):
        try:
            header, length = read_fields(file.read_at(min(num_bytes, stop - at), at))
        except ThriftError as error:
            reason = str(error)
            continue
        return header, at + length
    raise PageError(f"a header of a page makes no sense ({reason})")


def _page_of(header: ThriftFields, at: int) -> Page:
    """Return the page of a header.

    Raises:
        PageError: If it is of another kind than ours.
    """
    try:
        kind, uncompressed_bytes, compressed_bytes = header[1], header[2], header[3]
        of_kind = header[{_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}[kind]]
        num_values = of_kind[1]
        encoding = of_kind[4 if kind == _DATA_PAGE_V2 else 2]
        bare_levels, is_compressed = None, True
        if kind == _DATA_PAGE and (of_kind[3], of_kind[4]) != (_RLE, _RLE):
            raise PageError("levels of an old kind")
        if kind == _DICTIONARY_PAGE and encoding not in {_PLAIN, _PLAIN_DICTIONARY}:
            raise PageError(f"a dictionary in the encoding {encoding}")
        if kind == _DATA_PAGE_V2:
            bare_levels, is_compressed = (of_kind[6], of_kind[5]), of_kind.get(7, True)
        checksum = header.get(4)
        page = Page(
            at,
            compressed_bytes,
            uncompressed_bytes,
            None if checksum is None else checksum & 0xFFFFFFFF,
            num_values,
            encoding,
            bare_levels,
            is_compressed,
        )
        numbers = [compressed_bytes, uncompressed_bytes, num_values, encoding]
        numbers += bare_levels or ()
        is_sound = all(
            isinstance(number, int) and 0 <= number <= _MAX_NUMBER for number in numbers
        )
        is_sound &= sum(bare_levels or ()) <= min(compressed_bytes, uncompressed_bytes)
    except (KeyError, TypeError, AttributeError) as error:
        raise PageError("a header of a page lacks what it needs") from error
    if not is_sound:
        raise PageError("a header of a page has impossible numbers")
    return page
