"""Pixels of Arrow columns in memory: slices, chunked columns and every kind of list."""

import numpy as np
import pyarrow as pa
import pytest

from fastloader.errors import ImageDataError
from fastloader.sources._arrow_buffers import _view_bounds, binary_bounds, text_codes
from fastloader.sources._ome_arrow_layout import ColumnLayout
from fastloader.sources._ome_arrow_pixels import PixelWriter
from fastloader.sources._ome_arrow_table import ImageTableReader
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image

IMAGES = [random_image((1, 2, 2, 3, 4 + seed % 3), seed=seed) for seed in range(8)]
VALUES = [
    ome_arrow_value(image, tile=(1, 2, 3) if i % 2 else None) for i, image in enumerate(IMAGES)
]
VALUES[3] = None
VALUES[5] = ome_arrow_value(IMAGES[5], as_planes=True)


def extract(arrays):
    """Return the images of arrays that follow each other, None for nulls."""
    layout = ColumnLayout.of(arrays[0].type, "table")
    reader = ImageTableReader(layout, "table")
    for array in arrays:
        reader.add(array)
    table = reader.finish()
    rows = np.flatnonzero(table.has_image)
    sizes = table.shapes[rows].prod(axis=1) * table.item_sizes[rows]
    offsets = np.cumsum(sizes) - sizes
    block = bytearray(int(sizes.sum()))

    def write(offset, pixels):
        block[offset : offset + pixels.nbytes] = pixels.tobytes()

    writer = PixelWriter(layout, table, rows, offsets, write, channels=None, where="table")
    first = 0
    for array in arrays:
        if len(array):
            writer.write(array, np.arange(first, first + len(array)))
        first += len(array)
    images = [None] * table.num_rows
    for row, offset, size in zip(rows, offsets, sizes, strict=True):
        dtype = table.dtypes[table.dtype_codes[row]]
        content = block[offset : offset + size]
        images[row] = np.frombuffer(content, dtype).reshape(table.shapes[row])
    return images


def assert_images(rows, actual):
    expected = [None if VALUES[row] is None else IMAGES[row] for row in rows]
    assert [image is None for image in expected] == [image is None for image in actual]
    for one, other in zip(expected, actual, strict=True):
        if one is not None:
            np.testing.assert_array_equal(one, other)


def with_lists(array, of_pixels, of_pieces):
    """Return the array with other kinds of lists around pixels and pieces."""
    fields = []
    for field in array.type:
        kind = field.type
        if field.name in {"chunks", "planes"}:
            inner = [
                one.with_type(of_pixels(pa.uint16())) if one.name == "pixels" else one
                for one in kind.value_type
            ]
            kind = of_pieces(pa.struct(inner))
        fields.append(field.with_type(kind))
    return pa.array(array.to_pylist(), pa.struct(fields))


LISTS = [pa.list_, pa.large_list, pa.list_view, pa.large_list_view]


@pytest.mark.parametrize("of_pixels", LISTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("of_pieces", LISTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("rows", [slice(0, 8), slice(2, 7), slice(3, 4), slice(4, 4)], ids=str)
def test_a_slice_with_any_lists_gives_its_rows(of_pixels, of_pieces, rows):
    array = with_lists(image_array(VALUES), of_pixels, of_pieces)

    assert_images(range(8)[rows], extract([array[rows]]))


def test_a_chunked_column_gives_its_rows_in_order():
    array = image_array(VALUES)

    actual = extract([array[5:8], array[0:0], array[1:4], array[4:5]])

    assert_images([5, 6, 7, 1, 2, 3, 4], actual)


@pytest.mark.parametrize("channels", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_chunks_are_read_in_whatever_order_they_are_stored(channels):
    image = random_image((1, 3, 1, 4, 5), seed=1)
    value = ome_arrow_value(image)
    value["chunks"] = [value["chunks"][channel] for channel in channels]
    np.testing.assert_array_equal(extract([image_array([value, value])])[1], image)


@pytest.mark.parametrize("channels", [[0, 0, 1], [2, 0, 2], [1, 0, 0], [1, 2, 1]])
def test_chunks_that_overlap_are_refused_in_whatever_order_they_are_stored(channels):
    sound = ome_arrow_value(random_image((1, 3, 1, 4, 5), seed=1))
    damaged = {**sound, "chunks": [sound["chunks"][channel] for channel in channels]}
    with pytest.raises(ImageDataError, match="row 1: its chunks or planes overlap"):
        extract([image_array([sound, damaged])])


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.uint64(), pa.float32()])
def test_places_are_read_from_numbers_of_every_kind(kind):
    image = random_image((1, 2, 1, 4, 5), seed=1)
    chunks = image_array([ome_arrow_value(image)] * 2).field("chunks")
    structs = chunks.values
    fields = [
        structs.field(one.name).cast(kind) if one.name == "c" else structs.field(one.name)
        for one in structs.type
    ]
    changed = pa.StructArray.from_arrays(fields, names=[one.name for one in structs.type])
    meta = image_array([ome_arrow_value(image)] * 2).field("pixels_meta")
    lists = pa.ListArray.from_arrays(chunks.offsets, changed)
    column = pa.StructArray.from_arrays([meta, lists], names=["pixels_meta", "chunks"])
    np.testing.assert_array_equal(extract([column])[1], image)


def test_null_lists_that_have_a_length_are_passed_over():
    array = image_array([VALUES[0], VALUES[1], VALUES[2]])
    mask = pa.py_buffer(np.packbits([1, 0, 1], bitorder="little").tobytes())
    fields = [array.field(position) for position in range(array.type.num_fields)]
    array = pa.Array.from_buffers(array.type, 3, [mask], null_count=1, children=fields)

    actual = extract([array])

    assert actual[1] is None
    np.testing.assert_array_equal(IMAGES[2], actual[2])


def test_dictionary_encoded_metadata_is_read():
    array = image_array(VALUES[:3])
    position = array.type.get_field_index("pixels_meta")
    meta = array.field("pixels_meta")
    encoded = pa.StructArray.from_arrays(
        [
            meta.field(name).dictionary_encode()
            if name in {"type", "size_c"}
            else meta.field(name)
            for name in [field.name for field in meta.type]
        ],
        [field.name for field in meta.type],
    )
    children = [array.field(i) for i in range(array.type.num_fields)]
    children[position] = encoded
    array = pa.StructArray.from_arrays(children, [field.name for field in array.type])

    assert_images(range(3), extract([array]))


LONG = [b"a" * 13, None, b"b" * 40, b"c" * 20]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
@pytest.mark.parametrize(
    "values", [LONG, [*LONG, b"", b"short"], [None, None], [], [b"d" * 12]], ids=len
)
@pytest.mark.parametrize("start", [0, 1])
def test_bytes_of_any_kind_are_found(kind, values, start):
    array = pa.array(values, kind)[start:]

    first, stop, content = binary_bounds(array)

    found = [bytes(content[a:b]) for a, b in zip(first, stop, strict=True)]
    assert found == [one or b"" for one in values[start:]]


def test_long_bytes_are_not_copied():
    array = pa.array(LONG, pa.binary_view())

    _, _, content = binary_bounds(array)

    assert content.ctypes.data == array.buffers()[2].address


def test_a_view_that_reaches_out_of_its_buffer_is_not_followed():
    views = np.zeros(4, np.int32)
    views[0], views[3] = 20, 100
    buffers = [None, pa.py_buffer(views), pa.py_buffer(bytes(64))]
    array = pa.Array.from_buffers(pa.binary_view(), 1, buffers)

    assert _view_bounds(array) is None


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("count", [0, 1, 3, 100])
def test_texts_are_numbered_and_nulls_are_not(kind, count):
    texts = ["uint16", None, "uint8", "uint16"] * count

    codes, names = text_codes(pa.array(texts, kind))

    assert [None if code < 0 else names[code] for code in codes] == texts
    assert len(names) == len(set(names))
