"""Images in Parquet files: every encoding gives the pixels that the plain way gives."""

import copy
import gc
import pickle
import weakref
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader.errors import ImageDataError, SettingsError, SourceError
from fastloader.sources import ParquetSource, ome_arrow_type
from fastloader.sources._batch_rows import rows_at_once
from tests.ome_arrow_tables import (
    image_array,
    ome_arrow_value,
    random_image,
    read_as_py,
    write_images,
)
from tests.sources.reading import assert_same, read_images

WILD = Path(__file__).parents[1] / "data" / "BR00117006.ome.parquet"
NUMBER_TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMBER_TYPES += ["float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", NUMBER_TYPES)
@pytest.mark.parametrize("as_planes", [False, True], ids=["chunks", "planes"])
def test_lists_of_every_number_type_are_read(tmp_path, dtype, as_planes):
    image = random_image((1, 2, 1, 5, 7), dtype)

    path = write_images(
        tmp_path / "a.parquet", [ome_arrow_value(image, as_planes=as_planes)], dtype
    )

    assert_same([image], read_images(ParquetSource(path)))


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
@pytest.mark.parametrize("dtype", NUMBER_TYPES)
def test_bytes_of_every_number_type_are_read(tmp_path, dtype, codec):
    image = random_image((1, 2, 3, 5, 7), dtype)
    value = ome_arrow_value(image, encoding="bytes", codec=codec)

    path = write_images(tmp_path / "a.parquet", [value], encoding="bytes")

    assert_same([image], read_images(ParquetSource(path)))


def test_bytes_of_several_types_in_one_table_are_read(tmp_path):
    images = [random_image((1, 1, 1, 3, 3), dtype) for dtype in ("uint8", "float64", "uint16")]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]

    path = write_images(tmp_path / "a.parquet", values, encoding="bytes", row_group_size=10)

    assert_same(images, read_images(ParquetSource(path)))


@pytest.mark.parametrize(
    "kind", [pa.large_list, lambda item: pa.list_(item, 35)], ids=["large", "fixed"]
)
def test_other_kinds_of_lists_are_read(tmp_path, kind):
    images = [random_image((1, 2, 1, 5, 7), seed=seed) for seed in range(3)]
    array = image_array([ome_arrow_value(image) for image in images])
    chunk = [
        field.with_type(kind(pa.uint16())) if field.name == "pixels" else field
        for field in array.type.field("chunks").type.value_type
    ]
    fields = [
        field.with_type(pa.large_list(pa.struct(chunk))) if field.name == "chunks" else field
        for field in array.type
    ]
    array = pa.array(array.to_pylist(), pa.struct(fields))
    pq.write_table(pa.table({"image": array}), tmp_path / "a.parquet")

    assert_same(images, read_images(ParquetSource(tmp_path / "a.parquet")))


def test_texts_in_dictionaries_that_differ_from_row_group_to_row_group_are_read(tmp_path):
    images = [random_image((1, 1, 1, 5, 7), dtype) for dtype in ("uint8", "int16", "float32")]
    array = image_array(
        [ome_arrow_value(one, encoding="bytes") for one in images], encoding="bytes"
    )
    table = pa.table({
        "image": pa.array(array.to_pylist(), _with_dictionaries(array.type)),
        "tags": pa.array([["a"], None, ["b", "c"]], _with_dictionaries(pa.list_(pa.string()))),
    })
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)

    source = ParquetSource(tmp_path / "a.parquet")

    assert_same(images, read_images(source))
    assert source.read_channel_names() == [("channel 0",)] * 3
    assert [one.channels[0].id for one in source.iterate_descriptions()] == ["0"] * 3
    assert source.read_column("tags") == [["a"], None, ["b", "c"]]


def _with_dictionaries(kind):
    """Return a type with dictionaries in place of texts."""
    if pa.types.is_string(kind):
        return pa.dictionary(pa.int8(), kind)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_with_dictionaries(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_with_dictionaries(kind.value_type))
    return kind


def test_types_left_to_inference_are_read_as_what_the_metadata_states(tmp_path):
    images = [random_image((1, 1, 1, 4, 4), "uint8", seed) for seed in range(2)]
    values = [ome_arrow_value(image, as_planes=True) for image in images]
    pq.write_table(pa.table({"image": pa.array(values)}), tmp_path / "a.parquet")

    assert_same(images, read_images(ParquetSource(tmp_path / "a.parquet")))


def test_rows_of_every_layout_mix(tmp_path):
    images = [random_image((2, 3, 4, 30, 20), seed=seed) for seed in range(4)]
    values = [
        ome_arrow_value(images[0]),
        ome_arrow_value(images[1], as_planes=True),
        ome_arrow_value(images[2], tile=(3, 16, 7)),
        ome_arrow_value(images[3], tile=(4, 30, 20), order=lambda pieces: pieces[::-1]),
    ]
    path = write_images(tmp_path / "a.parquet", [None, *values], row_group_size=10)

    assert_same([None, *images], read_images(ParquetSource(path)))


def test_a_file_written_in_the_wild_is_read():
    table = pq.read_table(WILD)
    columns = [name for name in table.column_names if name.endswith("_ORIG")]

    for column in columns:
        assert_same(read_as_py(table[column]), read_images(ParquetSource(WILD, column)))


@st.composite
def values_and_images(draw):
    encoding = draw(st.sampled_from(["list", "bytes"]))
    dtype = draw(st.sampled_from(["uint8", "uint16", "int32", "float32"]))
    size = st.integers(1, 5)
    values, images = [], []
    for seed in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            values.append(None)
            images.append(None)
            continue
        image = random_image(draw(st.tuples(size, size, size, size, size)), dtype, seed)
        tile = draw(st.none() | st.tuples(size, size, size))
        seed_of_order = draw(st.integers(0, 3))
        values.append(
            ome_arrow_value(
                image,
                tile=tile,
                encoding=encoding,
                codec=draw(st.sampled_from([None, "zstd"])),
                as_planes=encoding == "list" and draw(st.booleans()),
                order=lambda pieces, seed=seed_of_order: [
                    pieces[i] for i in np.random.default_rng(seed).permutation(len(pieces))
                ],
            )
        )
        images.append(image)
    return values, images, dtype, encoding, draw(st.integers(1, 6))


@settings(max_examples=60, deadline=None)
@given(case=values_and_images(), num_threads=st.sampled_from([1, 2]))
def test_any_table_gives_the_pixels_that_were_written(tmp_path_factory, case, num_threads):
    values, images, dtype, encoding, row_group_size = case
    path = write_images(
        tmp_path_factory.mktemp("any") / "a.parquet",
        values,
        dtype,
        encoding=encoding,
        row_group_size=row_group_size,
    )

    actual = read_images(ParquetSource(path), num_threads=num_threads)

    assert_same(images, actual)
    assert_same(read_as_py(pq.read_table(path)["image"]), actual)


@settings(max_examples=30, deadline=None)
@given(case=values_and_images(), data=st.data())
def test_any_rows_and_channels_are_those_of_the_whole(tmp_path_factory, case, data):
    values, images, dtype, encoding, row_group_size = case
    path = write_images(
        tmp_path_factory.mktemp("any") / "a.parquet",
        values,
        dtype,
        encoding=encoding,
        row_group_size=row_group_size,
    )
    with_image = [row for row, image in enumerate(images) if image is not None]
    rows = sorted(data.draw(st.sets(st.sampled_from(with_image)))) if with_image else []
    fewest = min((images[row].shape[1] for row in rows), default=1)
    channels = data.draw(st.permutations(range(fewest)))[: data.draw(st.integers(1, fewest))]

    actual = read_images(ParquetSource(path), rows, channels=channels)

    expected = [image[:, channels] if row in rows else None for row, image in enumerate(images)]
    assert_same(expected, actual)


@pytest.mark.parametrize(("is_in_lists", "expected"), [(True, 2), (False, 4)])
def test_rows_that_are_held_decoded_are_few_of_a_small_table(is_in_lists, expected):
    megabytes = np.full(100, 1 << 20, np.int64)

    assert rows_at_once(megabytes, is_in_lists=is_in_lists) == expected


def test_many_row_groups_are_read_by_threads(tmp_path, monkeypatch):
    for name in ("_BYTES_PER_THREAD", "_PAGED_BYTES_PER_THREAD"):
        monkeypatch.setattr(f"fastloader.sources._parquet_plan.{name}", 1)
    images = [random_image((1, 1, 1, 8, 8), seed=seed) for seed in range(20)]
    path = write_images(tmp_path / "a.parquet", [ome_arrow_value(image) for image in images])
    counts = []

    actual = read_images(ParquetSource(path), num_threads=4, on_rows=counts.append)

    assert_same(images, actual)
    assert sum(counts) == 20


def test_the_first_error_of_any_thread_is_raised(tmp_path, monkeypatch):
    for name in ("_BYTES_PER_THREAD", "_PAGED_BYTES_PER_THREAD"):
        monkeypatch.setattr(f"fastloader.sources._parquet_plan.{name}", 1)
    values = [ome_arrow_value(random_image((1, 1, 1, 4, 4))) for _ in range(6)]
    values[3]["chunks"][0]["pixels"] = [0] * 15 + [None]
    path = write_images(tmp_path / "a.parquet", values)

    with pytest.raises(ImageDataError, match="row 3: some of its pixels are null"):
        read_images(ParquetSource(path), num_threads=3)


def change_size(value, **sizes):
    value["pixels_meta"].update(sizes)


def change_chunk(value, **fields):
    value["chunks"][1].update(fields)


BROKEN = {
    "zero size": (lambda v: change_size(v, size_x=0), "sizes T, C, Z, Y, X of 1 or more"),
    "negative size": (lambda v: change_size(v, size_t=-1), "sizes T, C, Z, Y, X of 1 or more"),
    "absurd size": (
        lambda v: change_size(v, size_x=2**31 - 1, size_y=2**31 - 1, size_t=2**31 - 1),
        r"at most 2\*\*44 pixels",
    ),
    "larger size": (lambda v: change_size(v, size_x=1000), "hold 24 pixels together, but"),
    "null size": (lambda v: change_size(v, size_z=None), "sizes T, C, Z, Y, X of 1 or more"),
    "no pieces": (
        lambda v: v.update(chunks=None, planes=None),
        "planes hold 0 pixels together",
    ),
    "missing chunk": (lambda v: v["chunks"].pop(), "hold 12 pixels together"),
    "overlapping chunks": (lambda v: change_chunk(v, c=0), "overlap"),
    "chunk outside": (lambda v: change_chunk(v, c=2), "reaches out of the image"),
    "negative place": (lambda v: change_chunk(v, z=-1), "reaches out of the image"),
    "null place": (
        lambda v: change_chunk(v, y=None),
        "y of one of its chunks or planes is null",
    ),
    "negative extent": (lambda v: change_chunk(v, shape_x=-4), "hold 12 pixels together"),
    "null chunk": (lambda v: v["chunks"].append(None), "one of its chunks is null"),
    "fewer pixels": (
        lambda v: change_chunk(v, pixels=[0] * 11),
        "expected 12 pixels .* got 11",
    ),
    "more pixels": (lambda v: change_chunk(v, pixels=[0] * 13), "expected 12 pixels .* got 13"),
    "no pixels": (lambda v: change_chunk(v, pixels=None), "expected 12 pixels .* got 0"),
    "null pixel": (
        lambda v: change_chunk(v, pixels=[None] * 12),
        "some of its pixels are null",
    ),
    "interleaved RGB": (
        lambda v: change_chunk(v, pixels=[0] * 36),
        "looks like interleaved RGB",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_an_image_that_makes_no_sense_is_named(tmp_path, damage, message):
    values = [ome_arrow_value(random_image((1, 2, 1, 3, 4))) for _ in range(5)]
    damage(values[3])
    path = write_images(tmp_path / "a.parquet", values)

    with pytest.raises(ImageDataError, match=message) as caught:
        read_images(ParquetSource(path))

    assert f"{path}, column 'image', row 3: " in str(caught.value)


BROKEN_BYTES = {
    "unknown dtype": (lambda v: v["chunks"][0].update(dtype="object"), "dtype is 'object'"),
    "no dtype": (lambda v: v["chunks"][0].update(dtype=None), "dtype is null"),
    "two dtypes": (lambda v: change_chunk(v, dtype="int16"), "not all of the dtype"),
    "fewer bytes": (
        lambda v: change_chunk(v, pixel_bytes=b"abc"),
        "expected 24 bytes .* got 3",
    ),
    "no bytes": (lambda v: change_chunk(v, pixel_bytes=None), "expected 24 bytes .* got 0"),
    "unknown codec": (lambda v: change_chunk(v, compression="zip"), "decompressed by zip"),
    "broken codec": (lambda v: change_chunk(v, compression="zstd"), "decompressed by zstd"),
    "absurd size": (
        lambda v: (change_size(v, size_x=2**20), change_chunk(v, shape_x=2**20)),
        "hold 3145740 pixels together",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BROKEN_BYTES.values(), ids=BROKEN_BYTES.keys())
def test_bytes_that_make_no_sense_are_named(tmp_path, damage, message):
    image = random_image((1, 2, 1, 3, 4))
    values = [ome_arrow_value(image, encoding="bytes") for _ in range(5)]
    damage(values[3])
    path = write_images(tmp_path / "a.parquet", values, encoding="bytes")

    with pytest.raises(ImageDataError, match=message) as caught:
        read_images(ParquetSource(path))

    assert f"{path}, column 'image', row 3: " in str(caught.value)


def test_chunks_that_claim_the_absurd_size_too_are_refused_by_the_footer(tmp_path):
    values = [ome_arrow_value(random_image((1, 1, 1, 3, 4))) for _ in range(5)]
    change_size(values[3], size_x=2**30)
    values[3]["chunks"][0]["shape_x"] = 2**30
    path = write_images(tmp_path / "a.parquet", values)

    with pytest.raises(
        ImageDataError, match=r"row 3: .*3221225472 pixels, but .* 24 pixels in all"
    ):
        ParquetSource(path).read_table()


def test_overlapping_tiles_are_refused(tmp_path):
    value = ome_arrow_value(random_image((1, 1, 1, 4, 6)), tile=(1, 2, 3))
    value["chunks"][3]["x"] = 0
    path = write_images(tmp_path / "a.parquet", [value])

    with pytest.raises(ImageDataError, match="row 0: its chunks overlap"):
        read_images(ParquetSource(path))


def test_interleaved_rgb_in_the_wild_is_refused():
    source = ParquetSource(WILD, "Image_FileName_OrigAGP_OMEArrow_COMP")

    with pytest.raises(ImageDataError, match=r"row 0: .*looks like interleaved RGB"):
        read_images(source)


def test_pixels_of_another_type_than_stated_are_read_with_a_warning(tmp_path):
    image = random_image((1, 1, 1, 3, 4), "uint16")
    value = ome_arrow_value(image)
    value["pixels_meta"]["type"] = "float32"
    path = write_images(tmp_path / "a.parquet", [value])
    source = ParquetSource(path)

    with pytest.warns(UserWarning, match=r"row 0: pixels are stored as uint16, but .* float32"):
        source.read_table()

    assert_same([image], read_images(source))


def test_an_inferred_pixel_that_the_stated_type_cannot_hold_is_named(tmp_path):
    value = ome_arrow_value(random_image((1, 2, 1, 2, 2), "uint8"), as_planes=True)
    value["planes"][1]["pixels"][2] = 300
    pq.write_table(pa.table({"image": pa.array([value])}), tmp_path / "a.parquet")

    with pytest.raises(ImageDataError, match="row 0: a pixel has the value 300, which uint8"):
        read_images(ParquetSource(tmp_path / "a.parquet"))


def test_channel_names_come_with_each_row(tmp_path):
    values = [ome_arrow_value(random_image((1, 2, 1, 3, 4))), None]

    source = ParquetSource(write_images(tmp_path / "a.parquet", values))

    assert source.read_channel_names() == [("channel 0", "channel 1"), ()]


def test_other_columns_are_arrays_of_numbers_or_lists(tmp_path):
    values = [ome_arrow_value(random_image((1, 1, 1, 3, 4)))] * 3
    source = ParquetSource(
        write_images(
            tmp_path / "a.parquet",
            values,
            area=[1.5, 2.5, 3.5],
            well=["A", None, "B"],
            n=[1, None, 2],
        )
    )

    assert source.column_names == ("area", "well", "n")
    np.testing.assert_array_equal([1.5, 2.5, 3.5], source.read_column("area"))
    assert source.read_column("well") == ["A", None, "B"]
    assert source.read_column("n") == [1, None, 2]
    with pytest.raises(
        SourceError, match="no column 'nosuch' beside its images; it has 'area'"
    ):
        source.read_column("nosuch")


@pytest.fixture
def two_columns(tmp_path):
    array = image_array([ome_arrow_value(random_image((1, 1, 1, 3, 4)))])
    pq.write_table(pa.table({"a": array, "b": array, "n": [1]}), tmp_path / "two.parquet")
    return tmp_path / "two.parquet"


def test_a_column_has_to_be_named_if_there_are_several(two_columns):
    with pytest.raises(
        SourceError, match=r"2 columns of OME-Arrow images .'a', 'b'.*image_column="
    ):
        ParquetSource(two_columns)

    assert ParquetSource(two_columns, "b").column_names == ("n",)


def test_a_missing_column_is_an_error_that_lists_the_others(two_columns):
    with pytest.raises(SourceError, match="no column 'c'; its columns of images are 'a', 'b'"):
        ParquetSource(two_columns, "c")


def test_a_column_without_images_is_refused(two_columns):
    with pytest.raises(
        SourceError, match=r"column 'n' is no OME-Arrow image: .* but got int64"
    ):
        ParquetSource(two_columns, "n")


def test_a_table_without_images_is_refused(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")

    with pytest.raises(SourceError, match="has 0 columns of OME-Arrow images"):
        ParquetSource(tmp_path / "a.parquet")


def test_a_table_without_rows_is_empty(tmp_path):
    source = ParquetSource(write_images(tmp_path / "a.parquet", []))

    assert source.read_table().num_rows == 0
    assert read_images(source) == []


@pytest.mark.parametrize(
    "spoil",
    [lambda c: b"", lambda c: b"text", lambda c: c[:-100], lambda c: c[: len(c) // 2]],
    ids=["empty", "text", "no footer", "half"],
)
def test_a_file_that_is_cut_off_is_refused(tmp_path, spoil):
    path = write_images(
        tmp_path / "a.parquet", [ome_arrow_value(random_image((1, 1, 1, 9, 9)))]
    )
    path.write_bytes(spoil(path.read_bytes()))

    with pytest.raises(
        SourceError, match=r"a.parquet is no Parquet file, or its end is cut off"
    ):
        ParquetSource(path)


def test_a_file_that_is_encrypted_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PARE" + bytes(100) + b"PARE")

    with pytest.raises(SourceError, match=r"a\.parquet is encrypted, .* without encryption"):
        ParquetSource(tmp_path / "a.parquet")


def test_pages_that_are_damaged_are_refused(tmp_path):
    path = write_images(
        tmp_path / "a.parquet", [ome_arrow_value(random_image((1, 1, 1, 9, 9)))]
    )
    content = bytearray(path.read_bytes())
    content[4:-2000] = b"\xff" * len(content[4:-2000])
    path.write_bytes(content)

    with pytest.raises(SourceError, match=r"a.parquet"):
        read_images(ParquetSource(path))


def test_a_flipped_bit_is_found_where_pages_have_checksums(tmp_path):
    array = image_array([ome_arrow_value(random_image((1, 1, 1, 64, 64)))])
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(pa.table({"image": array}), path, **options)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)

    with pytest.raises(SourceError, match=r"a.parquet cannot be read .*CRC"):
        read_images(ParquetSource(path))


def test_a_footer_whose_text_is_damaged_is_refused(tmp_path):
    path = write_images(
        tmp_path / "a.parquet", [ome_arrow_value(random_image((1, 1, 1, 9, 9)))]
    )
    content = path.read_bytes()
    place = content.index(b"pixels_meta")
    path.write_bytes(content[:place] + b"\xaa" + content[place + 1 :])

    with pytest.raises(SourceError, match=r"a.parquet cannot be read"):
        ParquetSource(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(SourceError, match=r"nosuch.parquet cannot be read"):
        ParquetSource(tmp_path / "nosuch.parquet")
    with pytest.raises(SourceError, match="is a folder: expected one Parquet file"):
        ParquetSource(tmp_path)


def test_a_pickle_holds_no_arrow_object_and_reads_the_same(tmp_path):
    image = random_image((1, 1, 1, 9, 9))
    source = ParquetSource(write_images(tmp_path / "a.parquet", [ome_arrow_value(image)]))
    read_images(source)

    pickled = pickle.dumps(source)

    assert b"pyarrow" not in pickled
    assert_same([image], read_images(pickle.loads(pickled)))
    assert_same([image], read_images(copy.deepcopy(source)))


def test_a_pickle_of_a_file_that_was_replaced_is_refused(tmp_path):
    path = write_images(
        tmp_path / "a.parquet", [ome_arrow_value(random_image((1, 1, 1, 9, 9)))]
    )
    source = ParquetSource(path)
    fingerprint = source.fingerprint
    pickled = pickle.dumps(source)
    write_images(path, [ome_arrow_value(random_image((1, 1, 1, 9, 9), seed=1))])

    with pytest.raises(SourceError, match="was replaced since"):
        read_images(pickle.loads(pickled))

    assert ParquetSource(path).fingerprint != fingerprint


@pytest.mark.slow
def test_the_canonical_type_is_that_of_ome_arrow():
    meta = pytest.importorskip("ome_arrow.meta")

    assert ome_arrow_type() == meta.OME_ARROW_STRUCT
    assert ome_arrow_type(encoding="bytes") == meta.OME_ARROW_BYTE_STRUCT


@pytest.fixture
def measured(tmp_path):
    values = [ome_arrow_value(random_image((1, 1, 1, 3, 4)))] * 6
    columns = {"area": [1.0, 2.0, None, 4.0, 5.0, 6.0], "well": ["A", "B"] * 3}
    return write_images(tmp_path / "a.parquet", values, **columns)


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (pc.field("area") > 1.5, [1, 3, 4, 5]),
        ((pc.field("area") < 5) & (pc.field("well") == "A"), [0]),
        (pc.field("area").is_null(), [2]),
        (pc.field("well") == "C", []),
    ],
    ids=["nulls left out", "two columns", "is null", "none"],
)
def test_rows_are_found_by_a_condition(measured, condition, rows):
    assert ParquetSource(measured).find_rows(condition).tolist() == rows


@pytest.fixture
def unreadable(measured):
    """The same table, the areas of whose second row group cannot be read."""
    content = bytearray(measured.read_bytes())
    group = pq.ParquetFile(measured).metadata.row_group(1)
    names = [group.column(i).path_in_schema for i in range(group.num_columns)]
    column = group.column(names.index("area"))
    first = column.dictionary_page_offset or column.data_page_offset
    content[first : first + column.total_compressed_size] = (
        b"\xff" * column.total_compressed_size
    )
    measured.write_bytes(content)
    return measured


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        (pc.field("area") > 4.5, [4, 5]),
        (pc.scalar(4.5) <= pc.field("area"), [4, 5]),
        ((pc.field("area") == 1) | (pc.field("area") >= 6), [0, 5]),
        ((pc.field("area") < 3) & pc.field("well").isin(["B", "C"]), [1]),
        ((pc.field("area") < 3) & ~pc.field("well").is_null(), None),
        (pc.field("area") > 3, None),
    ],
    ids=str,
)
def test_row_groups_that_statistics_exclude_are_not_read(unreadable, condition, rows):
    if rows is None:
        with pytest.raises(SourceError):
            ParquetSource(unreadable).find_rows(condition)
    else:
        assert ParquetSource(unreadable).find_rows(condition).tolist() == rows


@pytest.mark.parametrize(
    "condition",
    [pc.field("nosuch") == 1, pc.field("area") == "x"],
    ids=["no such column", "another type"],
)
def test_a_condition_that_does_not_fit_is_refused(measured, condition):
    with pytest.raises(SettingsError, match=r"a\.parquet: the condition .* cannot be applied"):
        ParquetSource(measured).find_rows(condition)


def test_the_number_of_rows_is_known_without_reading_any(measured):
    assert ParquetSource(measured).num_rows == 6


def test_an_open_file_keeps_nothing_of_what_was_read(tmp_path):
    images = [np.full((1, 1, 1, 256, 256), number, np.uint16) for number in range(64)]  # 8 MB
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    table = pa.table({"image": image_array(values, encoding="bytes")})
    pq.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    del table, values
    source = ParquetSource(tmp_path / "a.parquet")
    source.read_table()
    before = pa.total_allocated_bytes()

    rows = np.arange(64)
    source.read_images(rows, rows * images[0].nbytes, lambda offset, pixels: None)

    assert pa.total_allocated_bytes() - before < 1e6


def test_a_source_that_was_read_can_be_let_go_of(tmp_path):
    image = random_image((1, 1, 1, 3, 4))
    source = ParquetSource(write_images(tmp_path / "a.parquet", [ome_arrow_value(image)]))
    source.read_table()

    there = weakref.ref(source)
    del source
    gc.collect()

    assert there() is None
