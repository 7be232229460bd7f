"""Rows of Parquet files read from the pages that hold them alone."""

import tracemalloc
import weakref
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader.errors import FastLoaderError, ImageDataError
from fastloader.sources import (
    ParquetSource,
    _parquet,
    _parquet_bytes,
    _parquet_span,
    open_source,
)
from fastloader.sources._arrow_buffers import list_bounds, number_values
from fastloader.sources._page_bytes import PageBytes
from fastloader.sources._page_memory import PageBlocks, PageMemory
from fastloader.sources._parquet_flat import FlatType
from fastloader.sources._parquet_levels import (
    PageError,
    find_lower_levels,
    read_packed_numbers,
)
from fastloader.sources._parquet_pages import ChunkPages, Page, find_pages
from fastloader.sources._parquet_span import GroupPages, PageReader, edges_of
from fastloader.sources._thrift import Long, ThriftError, encode_fields, read_fields
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images
from tests.sources.test_parquet import values_and_images

SHAPES = [(1, 3, 1, 40, 30), (2, 1, 3, 32, 33), (1, 1, 1, 64, 64), (1, 2, 1, 50, 20)]
SHAPES += [(1, 3, 1, 40, 30)] * 4


def write(path, values, dtype="uint16", *, encoding="list", **options):
    """Write values as one column."""
    table = pa.table({"image": image_array(values, dtype, encoding=encoding)})
    pq.write_table(table, path, **options)
    return path


def read_rows(source, rows):
    """Return the images of some rows."""
    images = read_images(source, rows)
    return [images[row] for row in rows]


def noting_streams(monkeypatch):
    """Return a list to which row groups are added that Arrow streams."""
    found = []
    stream = ParquetSource._run_stream

    def noting(self, job, groups, *arguments):
        found.extend(groups)
        return stream(self, job, groups, *arguments)

    monkeypatch.setattr(ParquetSource, "_run_stream", noting)
    return found


@pytest.fixture
def streamed(monkeypatch):
    """Row groups that were left to Arrow's stream, of files that are always read by page."""
    monkeypatch.setattr(_parquet, "is_worth_pages", lambda *_, **__: True)
    return noting_streams(monkeypatch)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "lz4", "zstd", "brotli"])
@pytest.mark.parametrize("kind", ["chunks", "planes", "bytes"])
@pytest.mark.parametrize("options", [
    {},
    {"use_dictionary": False},
    {"write_page_checksum": True, "data_page_size": 3000, "write_batch_size": 7},
    {"row_group_size": 3, "data_page_size": 1, "write_page_index": True},
], ids=["one page", "plain", "checked", "small"])  # fmt: skip
def test_rows_are_those_of_every_kind_of_pages(
    tmp_path, streamed, version, codec, kind, options
):
    images = [random_image(shape, seed=seed) for seed, shape in enumerate(SHAPES)]
    encoding = "bytes" if kind == "bytes" else "list"
    values = [
        ome_arrow_value(one, encoding=encoding, as_planes=kind == "planes") for one in images
    ]
    images.insert(2, None)
    values.insert(2, None)
    path = write(
        tmp_path / "a.parquet",
        values,
        encoding=encoding,
        compression=codec,
        data_page_version=version,
        **options,
    )

    source = ParquetSource(path)

    assert_same(images, read_images(source))
    for rows in ([0], [4], [8], [1, 3], [0, 8], [3, 4, 5]):
        assert_same([images[row] for row in rows], read_rows(source, rows))
    assert streamed == []


@pytest.mark.parametrize(
    "dtype",
    ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
     "float64", "bool"],
)  # fmt: skip
@pytest.mark.parametrize("has_dictionary", [True, False])
def test_numbers_of_every_type_are_read_by_page(tmp_path, streamed, dtype, has_dictionary):
    numbers = "uint8" if dtype == "bool" else dtype
    images = [random_image((1, 2, 1, 20, 30), numbers, seed) for seed in range(3)]
    images = [image % 2 == 1 if dtype == "bool" else image for image in images]
    values = [ome_arrow_value(image) for image in images]

    path = write(tmp_path / "a.parquet", values, dtype, use_dictionary=has_dictionary)

    assert_same(images[1:2], read_rows(ParquetSource(path), [1]))
    assert streamed == []


@settings(max_examples=80, deadline=None)
@given(
    case=values_and_images(),
    version=st.sampled_from(["1.0", "2.0"]),
    page_bytes=st.sampled_from([50, 1 << 20]),
    data=st.data(),
)
def test_any_rows_of_any_table_are_those_that_were_written(
    tmp_path_factory, case, version, page_bytes, data
):
    values, images, dtype, encoding, row_group_size = case
    path = write(
        tmp_path_factory.mktemp("any") / "a.parquet",
        values,
        dtype,
        encoding=encoding,
        row_group_size=row_group_size,
        data_page_version=version,
        data_page_size=page_bytes,
        write_batch_size=3,
    )
    filled = [row for row, image in enumerate(images) if image is not None]
    rows = [row for row in filled if data.draw(st.booleans())]

    with mock.patch.object(_parquet, "is_worth_pages", return_value=True):
        source = ParquetSource(path)
        assert_same(images, read_images(source))
        assert_same([images[row] for row in rows], read_rows(source, rows))


@pytest.mark.parametrize("encoding", ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
def test_numbers_in_other_encodings_are_read_by_page(tmp_path, streamed, encoding):
    images = [random_image((1, 2, 1, 20, 30), seed=seed) for seed in range(3)]
    leaf = "image.chunks.list.element.pixels.list.element"

    path = write(
        tmp_path / "a.parquet",
        [ome_arrow_value(image) for image in images],
        use_dictionary=False,
        column_encoding={leaf: encoding},
    )

    assert_same(images[1:2], read_rows(ParquetSource(path), [1]))
    assert streamed == []


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_bytes_in_other_encodings_are_left_to_arrow(tmp_path, streamed, encoding):
    images = [random_image((1, 2, 1, 20, 30), seed=seed) for seed in range(3)]

    path = write(
        tmp_path / "a.parquet",
        [ome_arrow_value(image, encoding="bytes") for image in images],
        encoding="bytes",
        use_dictionary=False,
        column_encoding={"image.chunks.list.element.pixel_bytes": encoding},
    )

    assert_same(images[1:2], read_rows(ParquetSource(path), [1]))
    assert streamed == [0]


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4_raw"])
@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_pages_of_another_writer_are_read(tmp_path, streamed, version, codec, encoding):
    duckdb = pytest.importorskip("duckdb")
    images = [None if n == 5 else random_image((1, 3, 1, 40, 30), seed=n) for n in range(9)]
    values = [
        image if image is None else ome_arrow_value(image, encoding=encoding)
        for image in images
    ]
    table = pa.table({"image": image_array(values, encoding=encoding)})
    path = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        connection.register("given", table)
        connection.execute(
            f"copy given to '{path}' (format parquet, compression {codec}, "
            f"parquet_version {version})"
        )

    for row in (8, 0, 4, 6):
        assert_same([images[row]], read_rows(ParquetSource(path), [row]))

    is_by_difference = encoding == "bytes" and version == "V2"
    assert bool(streamed) == is_by_difference


def test_a_null_pixel_is_left_to_arrow_and_named(tmp_path, streamed):
    values = [ome_arrow_value(random_image((1, 1, 1, 4, 4), seed=seed)) for seed in range(3)]
    values[1]["chunks"][0]["pixels"] = [1, None, *range(14)]

    path = write(tmp_path / "a.parquet", values)

    with pytest.raises(FastLoaderError, match="row 1: some of its pixels are null"):
        read_images(ParquetSource(path), [1])
    assert streamed == [0]


def test_chunks_of_other_sizes_than_stated_are_refused(tmp_path, streamed):
    values = [ome_arrow_value(random_image((1, 2, 1, 4, 4), seed=seed)) for seed in range(3)]
    first, second = values[1]["chunks"]
    first["pixels"], second["pixels"] = np.arange(15), np.arange(17)

    path = write(tmp_path / "a.parquet", values)

    with pytest.raises(FastLoaderError, match="row 1: expected 16 pixels"):
        read_images(ParquetSource(path), [1])


@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_a_page_whose_checksum_does_not_fit_is_refused(tmp_path, streamed, encoding):
    image = random_image((1, 1, 1, 64, 64))
    path = write(
        tmp_path / "a.parquet",
        [ome_arrow_value(image, encoding=encoding)],
        encoding=encoding,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    content = bytearray(path.read_bytes())
    at = content.find(image.tobytes()[:16]) if encoding == "bytes" else 12_000
    content[at + 8] ^= 1
    path.write_bytes(content)

    with pytest.raises(FastLoaderError, match="CRC"):
        read_images(ParquetSource(path))


@pytest.fixture
def read(monkeypatch):
    """Pages that were read."""
    found = []
    read_page = _parquet_span.read_page

    def noting(file, page, *given, **options):
        found.append(page)
        return read_page(file, page, *given, **options)

    for module in (_parquet_span, _parquet_bytes):
        monkeypatch.setattr(module, "read_page", noting)
    return found


@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_a_row_costs_its_own_pages(tmp_path, read, encoding):
    images = [random_image((1, 1, 1, 64, 64), seed=seed) for seed in range(8)]
    path = write(
        tmp_path / "a.parquet",
        [ome_arrow_value(image, encoding=encoding) for image in images],
        encoding=encoding,
        use_dictionary=False,
        write_batch_size=1,
        data_page_size=1000,
        data_page_version="2.0",
    )
    source = ParquetSource(path)
    assert_same(images[5:6], read_rows(source, [5]))

    assert sum(page.num_values for page in read) == (64 * 64 if encoding == "list" else 1)


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_bytes_are_decompressed_as_far_as_they_are_wanted(tmp_path, streamed, codec):
    images = [random_image((1, 1, 1, 512, 512), seed=seed) for seed in range(8)]
    path = write(
        tmp_path / "a.parquet",
        [ome_arrow_value(image, encoding="bytes") for image in images],
        encoding="bytes",
        compression=codec,
    )

    assert_same(images[:1], read_rows(ParquetSource(path), [0]))
    assert_same(images[7:], read_rows(ParquetSource(path), [7]))
    assert streamed == []


def test_files_that_convert_writes_have_an_image_a_page(tmp_path, read):
    from fastloader.writing import write_images

    images = np.stack([
        random_image((1, 1, 1, 200, 200), seed=seed)[0, 0, 0] for seed in range(9)
    ])
    write_images(images, tmp_path / "a.parquet")
    found = read_rows(open_source(tmp_path / "a.parquet"), [4])

    np.testing.assert_array_equal(found[0][0, 0, 0], images[4])
    assert [page.num_values for page in read] == [1]


@st.composite
def numbers_and_runs(draw):
    """Numbers of some bits, and how they are stored."""
    width = draw(st.integers(1, 9))
    numbers, encoded = [], b""
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            length, number = draw(st.integers(1, 300)), draw(st.integers(0, 2**width - 1))
            numbers += [number] * length
            encoded += _varint(length << 1) + number.to_bytes((width + 7) // 8, "little")
        else:
            some = draw(st.lists(st.integers(0, 2**width - 1), min_size=8, max_size=8))
            numbers += some
            bits = sum(number << width * place for place, number in enumerate(some))
            encoded += _varint(1 << 1 | 1) + bits.to_bytes(width, "little")
    return numbers, width, encoded


def _varint(value):
    return bytes([value & 127 | 128, value >> 7]) if value > 127 else bytes([value])


@settings(deadline=None)
@given(numbers_and_runs())
def test_packed_numbers_are_those_that_were_packed(case):
    numbers, width, encoded = case

    np.testing.assert_array_equal(
        numbers, read_packed_numbers(memoryview(encoded), width, len(numbers))
    )


@settings(deadline=None)
@given(numbers_and_runs())
def test_lower_levels_are_all_but_the_highest(case):
    numbers, width, encoded = case
    highest = 2**width - 1

    at, levels = find_lower_levels(memoryview(encoded), highest, len(numbers), len(numbers))

    lower = [(place, one) for place, one in enumerate(numbers) if one < highest]
    assert lower == list(zip(at.tolist(), levels.tolist(), strict=True))


@settings(deadline=None)
@given(numbers_and_runs(), st.data())
def test_levels_that_are_cut_off_are_refused(case, data):
    numbers, width, encoded = case
    cut = data.draw(st.integers(0, len(encoded) - 1))

    with pytest.raises(PageError):
        read_packed_numbers(memoryview(encoded[:cut]), width, len(numbers))


def test_a_level_above_the_highest_is_refused():
    with pytest.raises(PageError, match="higher"):
        find_lower_levels(memoryview(bytes([8 << 1, 3])), 2, 8, 8)


def test_a_row_that_does_not_end_where_its_size_says_is_left_to_arrow(
    tmp_path, streamed, monkeypatch
):
    images = [random_image((1, 1, 1, 8, 8), seed=seed) for seed in range(2)]
    path = write(tmp_path / "a.parquet", [ome_arrow_value(image) for image in images])
    monkeypatch.setattr(PageReader, "ends_with_row", lambda *_: False)

    assert_same(images[:1], read_rows(ParquetSource(path), [0]))
    assert streamed == [0]


def test_more_lower_levels_than_there_can_be_are_refused_before_they_are_listed():
    of_a_billion = _varint_of(1 << 30 << 1) + b"\0"

    with pytest.raises(PageError, match="more lists"):
        find_lower_levels(memoryview(of_a_billion), 1, 1 << 30, 1000)


def test_packed_levels_beyond_the_last_are_not_unpacked():
    eights = 1 << 18
    encoded = _varint_of(eights << 1 | 1) + bytes(eights)

    tracemalloc.start()
    at, _ = find_lower_levels(memoryview(encoded), 1, 1, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert at.tolist() == [0]
    assert peak < 4 * eights


def test_too_many_packed_levels_are_left_to_arrow():
    eights = 1 << 20
    encoded = _varint_of(eights << 1 | 1) + bytes(eights)

    with pytest.raises(PageError, match="packed"):
        find_lower_levels(memoryview(encoded), 1, eights * 8, eights * 8)


def _varint_of(value):
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def _page_of_numbers(repetition, numbers):
    """Return the bytes of an uncompressed page of version 1, all of whose numbers are there."""
    levels = b""
    for each in (repetition, [1] * len(repetition)):
        runs = b"".join(_varint_of(1 << 1) + bytes([level]) for level in each)
        levels += len(runs).to_bytes(4, "little") + runs
    return levels + np.array(numbers, "<i4").tobytes()


@pytest.fixture
def read_across_pages():
    """Reads the first of two rows of four numbers each, if sizes are right, from two pages."""

    def read(*repetition):
        contents = [
            _page_of_numbers(levels, range(10 * page, 10 * page + len(levels)))
            for page, levels in enumerate(repetition)
        ]
        edges = edges_of(np.array([len(levels) for levels in repetition]))
        starts = edges_of(np.array([len(content) for content in contents]))
        pages = [
            Page(int(start), len(content), len(content), None, len(levels), 0)
            for start, content, levels in zip(starts, contents, repetition, strict=False)
        ]
        group = GroupPages(
            ChunkPages("uncompressed", None, pages),
            edges,
            np.array([0, 4, 8]),
            np.array([0, 1, 2]),
            pa.array([{}, {}], pa.struct([])),
        )
        file = pa.BufferReader(b"".join(contents))
        reader = PageReader(file, group, (2, 1), PageMemory(), is_whole=True)
        levels = reader.find(0, 4)
        assert levels.rows.tolist() == [0]
        numbers = reader.read_numbers(levels, levels.lists, FlatType(1, 17), np.dtype("int32"))
        return numbers.to_pylist(), reader.ends_with_row(levels)

    return read


@pytest.mark.parametrize("pages", [
    ([0, 2, 2, 2], [0, 2, 2, 2]),
    ([0, 2, 2], [2, 0, 2, 2, 2]),
    ([0], [2, 2, 2, 0, 2, 2, 2]),
    ([0, 2, 2, 2, 0, 2], [2, 2]),
])  # fmt: skip
def test_a_page_may_end_within_a_row(read_across_pages, pages):
    numbers, ends_with_row = read_across_pages(*pages)

    in_pages = [
        10 * page + at for page, levels in enumerate(pages) for at in range(len(levels))
    ]
    assert numbers == [in_pages[:4]]
    assert ends_with_row


def test_a_row_that_goes_on_in_the_next_page_is_no_row_that_ends(read_across_pages):
    _, ends_with_row = read_across_pages([0, 2, 2, 2], [2, 2, 0, 2])

    assert not ends_with_row


def test_fields_come_back_as_they_were():
    fields = {
        1: 5,
        2: Long(2**40),
        4: b"abc",
        9: {1: -3, 16: 0},
        11: [1, -2],
        12: [{1: 7}] * 20,
    }

    assert (fields, len(encode_fields(fields))) == read_fields(encode_fields(fields))


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_refused(content):
    try:
        _, stop = read_fields(content)
    except ThriftError:
        return
    assert 0 < stop <= len(content)


def test_lists_without_end_are_refused():
    with pytest.raises(ThriftError, match="without end"):
        read_fields(b"\x19" * 4000)


@pytest.mark.parametrize("size", [1 << 31, 1 << 40, 1 << 64])
def test_sizes_that_no_page_can_have_are_refused(size):
    header = encode_fields({1: 0, 2: Long(size), 3: 8, 5: {1: 8, 2: 0, 3: 3, 4: 3}})
    chunk = mock.Mock(
        file_path="",
        dictionary_page_offset=None,
        data_page_offset=4,
        num_values=8,
        total_compressed_size=len(header) + 8,
        total_uncompressed_size=1 << 65,
    )

    with pytest.raises(PageError, match="impossible numbers"):
        find_pages(pa.BufferReader(b"PAR1" + header + bytes(8)), chunk)


def test_a_dictionary_of_another_encoding_is_left_to_arrow():
    header = encode_fields({1: 2, 2: 8, 3: 8, 7: {1: 2, 2: 5}})
    chunk = mock.Mock(
        file_path="",
        dictionary_page_offset=4,
        data_page_offset=20,
        num_values=8,
        total_compressed_size=100,
        total_uncompressed_size=100,
    )

    with pytest.raises(PageError, match="encoding 5"):
        find_pages(pa.BufferReader(b"PAR1" + header + bytes(200)), chunk)


def test_memory_of_pages_is_used_again():
    memory = PageMemory()
    blocks = PageBlocks(memory)
    first = blocks.take(1000)
    second = blocks.take(1000)
    assert not np.shares_memory(np.asarray(first), np.asarray(second))

    blocks.give_back()

    again = [memory.take(900), memory.take(900)]
    for block in (first, second):
        assert any(np.shares_memory(np.asarray(block), one) for one in again)


def test_memory_of_large_pages_is_let_go_of():
    memory = PageMemory()
    blocks = PageBlocks(memory)
    block = weakref.ref(np.asarray(blocks.take(9 << 20)).base)

    blocks.give_back()

    assert block() is None


def test_what_was_read_stays_when_the_memory_of_its_pages_is_used_again(tmp_path, streamed):
    images = [random_image((1, 1, 1, 64, 64), seed=seed) for seed in range(8)]
    for encoding in ("list", "bytes"):
        path = write(
            tmp_path / f"{encoding}.parquet",
            [ome_arrow_value(image, encoding=encoding) for image in images],
            encoding=encoding,
            compression="none",
            write_batch_size=1,
            data_page_size=1000,
        )
        paged = ParquetSource(path)._paged["chunks"]
        row_levels = np.full(8, 64 * 64)

        found = []
        for (column, apart), _ in paged.read(0, np.arange(8), row_levels, 1):
            starts, stops, values = list_bounds(column.field("chunks").flatten().field(-1))
            content = number_values(values) if apart is None else apart
            found += [
                content[start:stop]
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            ]

        for image, pixels in zip(images, found, strict=True):
            assert pixels.tobytes() == image.tobytes()


LARGE = (1, 1, 1, 480, 480)
"""Bytes of a chunk that are worth a page."""


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "lz4", "gzip"])
@pytest.mark.parametrize("options", [
    {},
    {"use_dictionary": False},
    {"use_dictionary": False, "data_page_version": "2.0", "data_page_size": 1, "write_batch_size": 2},
], ids=["dictionary", "plain", "pages"])  # fmt: skip
def test_whole_groups_of_large_bytes_are_read_by_page(tmp_path, monkeypatch, codec, options):
    images = [random_image(LARGE, seed=seed % 3) for seed in range(7)]
    images.insert(2, None)
    values = [None if one is None else ome_arrow_value(one, encoding="bytes") for one in images]
    path = write(
        tmp_path / "a.parquet", values, encoding="bytes", compression=codec, row_group_size=3,
        **options,
    )  # fmt: skip
    streamed = noting_streams(monkeypatch)

    assert_same(images, read_images(ParquetSource(path)))

    assert streamed == ([0, 1, 2] if codec == "gzip" else [])


def test_levels_of_pages_alike_are_looked_at_once(tmp_path, monkeypatch):
    images = [random_image(LARGE, seed=seed) for seed in range(5)]
    path = write(
        tmp_path / "a.parquet",
        [ome_arrow_value(image, encoding="bytes") for image in images],
        encoding="bytes", compression="none",
        use_dictionary=False, data_page_size=1, write_batch_size=1,
    )  # fmt: skip
    looked_at = []

    def noting(levels, *given):
        looked_at.append(levels)
        return find_lower_levels(levels, *given)

    monkeypatch.setattr(_parquet_bytes, "find_lower_levels", noting)

    assert_same(images, read_images(ParquetSource(path)))

    assert (
        len(looked_at) == 2
    )  # where rows begin and where they have nothing, of one page of five


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_bytes_of_another_length_than_their_shape_says_are_refused_by_name(tmp_path, codec):
    values = [
        ome_arrow_value(random_image(LARGE, seed=seed), encoding="bytes") for seed in range(3)
    ]
    values[1]["chunks"][0]["pixel_bytes"] = values[1]["chunks"][0]["pixel_bytes"][:-2]
    values[2]["chunks"][0]["pixel_bytes"] += b"\0\0"
    path = write(tmp_path / "a.parquet", values, encoding="bytes", compression=codec)

    with pytest.raises(ImageDataError, match=r"row 1.*expected 460800 bytes.*got 460798"):
        read_images(ParquetSource(path))


def test_chunks_that_are_compressed_themselves_are_read_by_page(tmp_path, streamed):
    images = [random_image((1, 2, 1, 40, 30), seed=seed) for seed in range(4)]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    for value in values:
        for chunk in value["chunks"]:
            chunk["compression"] = "zstd"
            chunk["pixel_bytes"] = pa.compress(chunk["pixel_bytes"], "zstd", asbytes=True)
    path = write(tmp_path / "a.parquet", values, encoding="bytes")

    assert_same(images, read_images(ParquetSource(path)))
    assert_same(images[2:3], read_rows(ParquetSource(path), [2]))
    assert streamed == []


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "gzip", "brotli"])
def test_a_page_of_another_length_than_it_says_is_refused(codec, is_whole):
    content = np.random.default_rng(0).integers(0, 9, 300_000, np.uint8).tobytes()
    packed = memoryview(
        pa.compress(content, {"lz4": "lz4_raw"}.get(codec, codec), asbytes=True)
    )

    def read(stored, num_bytes):
        blocks = PageBlocks(PageMemory())
        return bytes(PageBytes(stored, num_bytes, codec, blocks, is_whole=is_whole).all())

    assert read(packed, len(content)) == content
    for stored, num_bytes in (
        (packed, len(content) - 1),
        (packed, len(content) + 1),
        (packed[:-3], len(content)),
        (packed[:1], len(content)),
    ):
        with pytest.raises(PageError):
            read(stored, num_bytes)
