"""Every table format gives the images, columns and rows that were written, and the same errors."""

import copy
import gc
import importlib
import multiprocessing
import os
import pickle
import platform
import shutil
import subprocess
import sys
import threading
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc

from fastloader import FastLoader, OMEArrowDataset
from fastloader.errors import ImageDataError, SettingsError, SourceError
from fastloader.sources import _batch_rows, open_source
from fastloader.sources._duckdb import DuckDBTable
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images

ROWS_OF_BATCH = 3


def write_ipc(table, path, compression=None):
    with ipc.new_file(
        path, table.schema, options=ipc.IpcWriteOptions(compression=compression)
    ) as file:
        file.write_table(table, max_chunksize=ROWS_OF_BATCH)


def write_duckdb(table, path):
    duckdb = importlib.import_module("duckdb")
    with duckdb.connect(path) as connection:
        connection.register("given", table)
        connection.execute("create table images as select * from given")


WRITERS = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=ROWS_OF_BATCH),
    "lance": lambda table, path: importlib.import_module("lance").write_dataset(table, path),
    "duckdb": write_duckdb,
    "vortex": lambda table, path: importlib.import_module("vortex").io.write(table, str(path)),
    "arrow": write_ipc,
    "feather": lambda table, path: write_ipc(table, path, "lz4"),
}
WITH_THREADS = {"lance", "vortex"}


def formats(names):
    """Return the formats as cases; those that leave threads behind run last."""
    return [
        pytest.param(name, marks=pytest.mark.library_threads if name in WITH_THREADS else ())
        for name in names
    ]


every_format = pytest.mark.parametrize("kind", formats(WRITERS))


def write(folder, kind, values, dtype="uint16", *, encoding="list", **columns):
    """Write images and columns in a format, and return the path."""
    if kind not in {"parquet", "arrow", "feather"}:
        pytest.importorskip(kind)
    array = image_array(values, dtype, encoding=encoding)
    path = folder / f"cells.{kind}"
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    WRITERS[kind](pa.table({"image": array, **columns}), path)
    return path


IMAGES = [random_image((1, 2, 2, 5, 4 + seed % 3), seed=seed) for seed in range(7)]


def mixed_values():
    """Return values of every layout, and the images they are."""
    images = [*IMAGES[:5], None, IMAGES[6]]
    values = [
        ome_arrow_value(IMAGES[0]),
        ome_arrow_value(IMAGES[1], as_planes=True),
        ome_arrow_value(IMAGES[2], tile=(1, 2, 3)),
        ome_arrow_value(IMAGES[3], tile=(2, 5, 7), order=lambda pieces: pieces[::-1]),
        ome_arrow_value(IMAGES[4], as_planes=True, order=lambda pieces: pieces[::-1]),
        None,
        ome_arrow_value(IMAGES[6]),
    ]
    return values, images


class RegisteredImages(pa.ExtensionType):
    """A type of somebody's own over structs of any kind."""

    def __init__(self, storage):
        super().__init__(storage, "tests.images")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, _):
        return cls(storage)


@pytest.fixture
def registered_images():
    """Register the type for a test."""
    pa.register_extension_type(RegisteredImages(pa.struct([])))
    yield
    pa.unregister_extension_type("tests.images")


@pytest.mark.usefixtures("registered_images")
@pytest.mark.parametrize("kind", formats(["arrow", "feather", "lance", "parquet"]))
@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_images_of_a_type_that_is_registered_are_read(tmp_path, kind, encoding):
    images = [*IMAGES[:4], None, IMAGES[5]]
    values = [one if one is None else ome_arrow_value(one, encoding=encoding) for one in images]
    array = image_array(values, encoding=encoding)
    typed = pa.ExtensionArray.from_storage(RegisteredImages(array.type), array)
    if kind == "lance":
        pytest.importorskip(kind)
    path = tmp_path / f"cells.{kind}"
    WRITERS[kind](pa.table({"image": typed, "n": range(6)}), path)

    source = open_source(path)

    assert_same(images, read_images(source))
    assert_same([IMAGES[3]], read_images(source, [3])[3:4])
    assert source.read_column("n").tolist() == list(range(6))
    assert len(source.read_channel_names()) == 6
    assert len(list(source.iterate_descriptions())) == 6


@pytest.mark.usefixtures("registered_images")
@pytest.mark.parametrize("kind", formats(["arrow", "feather", "lance", "parquet"]))
def test_columns_of_a_type_that_is_registered_have_the_values_that_are_stored(tmp_path, kind):
    if kind == "lance":
        pytest.importorskip(kind)
    stored = {"numbers": pa.array(range(6)), "texts": pa.array([*"abcde", None])}
    columns = {
        name: pa.ExtensionArray.from_storage(RegisteredImages(values.type), values)
        for name, values in stored.items()
    }
    path = tmp_path / f"cells.{kind}"
    array = image_array([ome_arrow_value(image) for image in IMAGES[:6]])
    WRITERS[kind](pa.table({"image": array, **columns}), path)

    source = open_source(path)

    assert source.read_column("numbers").tolist() == list(range(6))
    assert source.read_column("texts") == [*"abcde", None]
    assert source.find_rows(pc.field("numbers") > 3).tolist() == [4, 5]


@pytest.mark.parametrize("encoding", ["list", "bytes"])
@pytest.mark.parametrize("kind", formats(kind for kind in WRITERS if kind != "lance"))
def test_a_file_that_is_written_over_while_it_is_read_is_told(tmp_path, kind, encoding):
    """Or a cache would have images of both: those read before, and those after."""
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    images = [random_image((1, 1, 1, 64, 64), seed=seed) for seed in range(20)]
    values = [ome_arrow_value(image, encoding=encoding) for image in images]
    path = write(tmp_path / "old", kind, values, encoding=encoding)
    other = write(tmp_path / "new", kind, values[::-1], encoding=encoding)
    source = open_source(path)
    assert_same(images[:1], read_images(source, [0])[:1])

    path.write_bytes(other.read_bytes())

    with pytest.raises(SourceError, match=rf"cells\.{kind} was written to since"):
        read_images(source, [1])


@pytest.mark.skipif(sys.platform == "win32", reason="no open file can be replaced")
@pytest.mark.parametrize("kind", formats(["parquet", "arrow", "feather", "vortex"]))
def test_a_file_that_another_took_the_place_of_is_read_to_its_end_or_told(tmp_path, kind):
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    values = [ome_arrow_value(image) for image in IMAGES]
    path = write(tmp_path / "old", kind, values)
    other = write(tmp_path / "new", kind, values[::-1])
    source = open_source(path)
    read_images(source, [0])

    os.utime(other, ns=(0, path.stat().st_mtime_ns + 1))
    other.replace(path)

    try:
        images = read_images(source)
    except SourceError as error:  # what has to open it once more
        assert f"cells.{kind} was replaced since" in str(error)  # noqa: PT017 - one of two right ways
    else:
        assert_same(IMAGES, images)


@every_format
def test_rows_of_every_layout_are_read(tmp_path, kind):
    values, images = mixed_values()

    source = open_source(write(tmp_path, kind, values))

    assert source.num_rows == 7
    assert_same(images, read_images(source))
    assert_same(images, read_images(source, num_threads=2))


@every_format
@pytest.mark.parametrize("rows", [[0], [1, 6], [4], [0, 2, 3, 4, 6]], ids=str)
def test_some_rows_are_those_of_the_whole(tmp_path, kind, rows):
    values, images = mixed_values()

    actual = read_images(open_source(write(tmp_path, kind, values)), rows, channels=[1])

    assert_same([im[:, [1]] if row in rows else None for row, im in enumerate(images)], actual)


@every_format
@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
def test_bytes_of_several_types_are_read(tmp_path, kind, codec, dtype):
    images = [random_image((1, 2, 1, 5, 7), one) for one in (dtype, "uint16", dtype)]
    values = [ome_arrow_value(image, encoding="bytes", codec=codec) for image in images]

    source = open_source(write(tmp_path, kind, values, encoding="bytes"))

    assert_same(images, read_images(source))


@every_format
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64", "float32", "float64"])
def test_lists_of_number_types_are_read(tmp_path, kind, dtype):
    images = [random_image((1, 2, 1, 5, 7), dtype, seed) for seed in range(4)]

    source = open_source(write(tmp_path, kind, list(map(ome_arrow_value, images)), dtype))

    assert_same(images, read_images(source))


@every_format
def test_types_left_to_inference_are_read_as_what_the_metadata_states(tmp_path, kind):
    images = [random_image((1, 1, 1, 4, 4), "uint8", seed) for seed in range(2)]
    values = [ome_arrow_value(image) for image in images]
    for value in values:  # an empty list has no type, and not every format takes none
        del value["planes"]
    array = pa.array(values)
    if kind not in {"parquet", "arrow", "feather"}:
        pytest.importorskip(kind)
    WRITERS[kind](pa.table({"image": array}), tmp_path / f"cells.{kind}")

    assert_same(images, read_images(open_source(tmp_path / f"cells.{kind}")))


@every_format
def test_other_columns_and_channel_names_come_with_the_rows(tmp_path, kind):
    columns = {"area": [1.5, 2.5, 3.5], "well": ["A", None, "B"], "n": [1, None, 2]}
    values = [ome_arrow_value(IMAGES[0]), None, ome_arrow_value(IMAGES[0])]

    source = open_source(write(tmp_path, kind, values, **columns))

    assert source.column_names == ("area", "well", "n")
    np.testing.assert_array_equal([1.5, 2.5, 3.5], source.read_column("area"))
    assert source.read_column("well") == ["A", None, "B"]
    assert source.read_column("n") == [1, None, 2]
    names = ("channel 0", "channel 1")
    assert source.read_channel_names() == [names, (), names]
    with pytest.raises(SourceError, match="no column 'nosuch' beside its images"):
        source.read_column("nosuch")


@every_format
def test_rows_are_found_by_a_condition(tmp_path, kind):
    values = [ome_arrow_value(IMAGES[0])] * 6
    columns = {"area": [1.0, 2.0, None, 4.0, 5.0, 6.0], "well": ["A", "B"] * 3}
    source = open_source(write(tmp_path, kind, values, **columns))

    assert source.find_rows(pc.field("area") > 1.5).tolist() == [1, 3, 4, 5]
    condition = (pc.field("area") < 5) & (pc.field("well") == "A")
    assert source.find_rows(condition).tolist() == [0]
    assert source.find_rows(pc.field("well") == "C").tolist() == []
    with pytest.raises(SettingsError, match=r"the condition .* cannot be applied"):
        source.find_rows(pc.field("nosuch") == 1)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_views_of_text_are_values_and_are_compared(tmp_path, kind):
    names = pa.array(["a", "b", None, "a", "c", "b", "a"])
    # As Polars writes categories to Arrow files; Arrow itself cannot write them to Parquet.
    of_category = pa.string() if kind == "parquet" else pa.string_view()
    path = write(
        tmp_path,
        kind,
        list(map(ome_arrow_value, IMAGES)),
        view=names.cast(pa.string_view()),
        category=pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None, 0, 2, 1, 0]), pa.array(["a", "b", "c"], of_category)
        ),
    )
    source = open_source(path)

    for name in ("view", "category"):
        assert names.to_pylist() == source.read_column(name)
        assert source.find_rows(pc.field(name) == "a").tolist() == [0, 3, 6]


@every_format
def test_a_pickle_holds_no_arrow_object_and_reads_the_same(tmp_path, kind):
    source = open_source(write(tmp_path, kind, [ome_arrow_value(IMAGES[0])], n=[1]))
    read_images(source)
    source.read_column("n")

    pickled = pickle.dumps(source)

    assert b"pyarrow" not in pickled
    assert len(pickled) < 4000
    assert_same(IMAGES[:1], read_images(pickle.loads(pickled)))
    assert_same(IMAGES[:1], read_images(copy.deepcopy(source)))


@every_format
def test_the_fingerprint_tells_whether_the_content_is_the_same(tmp_path, kind):
    path = write(tmp_path, kind, [ome_arrow_value(IMAGES[0])])
    source = open_source(path)
    fingerprint, pickled = source.fingerprint, pickle.dumps(source)
    again = open_source(path).fingerprint
    del source
    gc.collect()  # DuckDB does not write to a file that is open to read

    write(tmp_path, kind, [ome_arrow_value(random_image((1, 2, 2, 5, 4), seed=99))])

    assert fingerprint == again
    assert open_source(path).fingerprint != again
    with pytest.raises(SourceError, match=r"cells\."):
        read_images(pickle.loads(pickled))


@every_format
def test_several_threads_read_one_source(tmp_path, kind):
    values, images = mixed_values()
    source = open_source(write(tmp_path, kind, values))
    source.read_table()
    results = []

    threads = [
        threading.Thread(target=lambda: results.append(read_images(source))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(results) == 3
    for result in results:
        assert_same(images, result)


BROKEN = {
    "zero size": lambda v: v["pixels_meta"].update(size_x=0),
    "absurd size": lambda v: v["pixels_meta"].update(size_x=2**31 - 1, size_y=2**31 - 1),
    "larger size": lambda v: v["pixels_meta"].update(size_x=1000),
    "no pieces": lambda v: v.update(chunks=None, planes=None),
    "missing chunk": lambda v: v["chunks"].pop(),
    "overlapping chunks": lambda v: v["chunks"][1].update(c=0),
    "chunk outside": lambda v: v["chunks"][1].update(c=2),
    "fewer pixels": lambda v: v["chunks"][1].update(pixels=[0] * 11),
    "null pixel": lambda v: v["chunks"][1].update(pixels=[None] * 12),
}


@every_format
@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN)
def test_an_image_that_makes_no_sense_is_named(tmp_path, kind, damage):
    values = [ome_arrow_value(random_image((1, 2, 1, 3, 4))) for _ in range(5)]
    damage(values[3])
    path = write(tmp_path, kind, values)

    with pytest.raises(ImageDataError, match=r"column 'image', row 3: ") as caught:
        read_images(open_source(path))

    assert str(path) in str(caught.value)


@every_format
def test_a_size_far_above_others_is_checked_before_memory_is_taken(tmp_path, kind):
    values = [ome_arrow_value(random_image((1, 2, 1, 3, 4))) for _ in range(9)]
    values[6]["pixels_meta"]["size_x"] = 2**30
    source = open_source(write(tmp_path, kind, values))

    with pytest.raises(ImageDataError, match=r"row 6: .*(24 pixels together|do not add up)"):
        source.read_table()


@every_format
@pytest.mark.parametrize("row", [0, 2], ids=["found at once", "found late"])
def test_bytes_of_another_type_than_stated_are_never_read_as_that(tmp_path, kind, row):
    images = [random_image((1, 2, 1, 3, 4)) for _ in range(8)]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    values[row]["pixels_meta"]["type"] = "float64"
    source = open_source(write(tmp_path, kind, values, encoding="bytes"))

    if row == 2 and kind not in {"parquet", "arrow", "feather"}:
        with pytest.raises(ImageDataError, match=r"row 2: .*not all of the dtype float64"):
            read_images(source)
        return
    with pytest.warns(UserWarning, match=r"row \d: pixels are stored as uint16, but"):
        source.read_table()
    assert_same(images, read_images(source))


@every_format
def test_lists_of_truth_values_are_read(tmp_path, kind):
    images = [random_image((1, 1, 1, 3, 7), "uint8", seed) > 99 for seed in range(2)]

    path = write(tmp_path, kind, [ome_arrow_value(image) for image in images], "bool")

    assert_same(images, read_images(open_source(path)))


@every_format
def test_images_beside_a_column_with_a_dictionary_are_read(tmp_path, kind):
    values, images = mixed_values()
    wells = pa.array([f"well {row % 2}" for row in range(len(values))]).dictionary_encode()

    source = open_source(write(tmp_path, kind, values, well=wells))

    assert_same(images, read_images(source))
    assert wells.to_pylist() == list(source.read_column("well"))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_columns_that_share_a_name_are_not_mistaken_for_each_other(tmp_path, kind):
    image = image_array([ome_arrow_value(IMAGES[0])])
    numbers = [pa.array([1]), pa.array([2])]
    path = tmp_path / f"cells.{kind}"
    WRITERS[kind](pa.Table.from_arrays([image, *numbers], ["image", "n", "n"]), path)
    source = open_source(path)

    assert source.column_names == ()
    assert_same(IMAGES[:1], read_images(source))
    with pytest.raises(
        SourceError, match="has no column 'n' beside its images, but 2 of that name"
    ):
        source.read_column("n")
    WRITERS[kind](pa.Table.from_arrays([image, numbers[0]], ["image", "image"]), path)
    with pytest.raises(SourceError, match="2 columns of the name 'image'"):
        open_source(path)


def test_a_size_that_no_image_has_is_refused_where_it_is_the_only_one(tmp_path):
    value = ome_arrow_value(IMAGES[0])
    value["pixels_meta"]["size_y"] = value["pixels_meta"]["size_x"] = 2**20
    source = open_source(write(tmp_path, "arrow", [value]))

    with pytest.raises(ImageDataError, match="row 0"):
        source.read_table()


SIZES_ALONE = formats(["lance", "feather"])


@pytest.mark.parametrize("encoding", ["list", "bytes"])
@pytest.mark.parametrize("kind", SIZES_ALONE)
def test_what_pieces_are_is_read_without_their_pixels(tmp_path, kind, encoding):
    values = [
        None if row == 2 else ome_arrow_value(image, encoding=encoding, as_planes=row == 4)
        for row, image in enumerate(IMAGES)
    ]
    table = open_source(write(tmp_path, kind, values, encoding=encoding))._table
    fields = ("chunks", "planes", "pixels_meta")
    written = {name: [None if one is None else one[name] for one in values] for name in fields}

    parts = pa.Table.from_batches(
        batch
        for _, batch in table.read_fields("image", fields, None, 3, ("pixels", "pixel_bytes"))
    )

    assert list(fields) == parts.schema.names
    for name in ("chunks", "planes"):
        expected = [
            pieces
            and [
                {key: one[key] for key in one if key not in {"pixels", "pixel_bytes"}}
                for one in pieces
            ]
            for pieces in written[name]
        ]
        assert expected == parts.column(name).to_pylist()
    assert [one and one["type"] for one in written["pixels_meta"]] == [
        one and one["type"] for one in parts.column("pixels_meta").to_pylist()
    ]


@pytest.mark.parametrize("kind", SIZES_ALONE)
def test_types_that_only_pieces_state_are_found_in_a_column_of_any_name(tmp_path, kind):
    values = [ome_arrow_value(image, encoding="bytes") for image in IMAGES]
    for value in values:
        value["pixels_meta"]["type"] = None
    pytest.importorskip("lance") if kind == "lance" else None
    WRITERS[kind](pa.table({"a (b)": image_array(values, encoding="bytes")}), tmp_path / kind)
    path = (tmp_path / kind).rename(tmp_path / f"cells.{kind}")

    assert_same(IMAGES, read_images(open_source(path)))


def test_pixels_are_not_decompressed_where_only_sizes_are_asked_for(tmp_path):
    content = np.random.default_rng(0).integers(0, 2**16, 50_000, np.uint16).tobytes()
    image = np.frombuffer(content, np.uint16).reshape(1, 1, 1, 50, 1000)
    values = [ome_arrow_value(image, encoding="bytes")]
    path = write(tmp_path, "feather", values, encoding="bytes")
    damaged = bytearray(path.read_bytes())
    # Arrow keeps what does not become smaller as it is, with a length of -1 before it.
    damaged[damaged.index(content[:64]) - 8] = 7
    path.write_bytes(damaged)
    source = open_source(path)

    assert source.read_table().shapes.tolist() == [[1, 1, 1, 50, 1000]]
    with pytest.raises(SourceError, match=r"cells\.feather"):
        read_images(source)


@pytest.mark.parametrize("name", [b"emission_um", b"shape_z", b"channels"])
def test_a_name_that_is_no_text_is_refused_when_the_file_is_opened(tmp_path, name):
    path = write(tmp_path, "arrow", [ome_arrow_value(IMAGES[0])])
    path.write_bytes(path.read_bytes().replace(name, b"\xff" + name[1:]))

    with pytest.raises(SourceError, match=r"cells\.arrow"):
        open_source(path)


@every_format
def test_a_table_without_rows_is_empty(tmp_path, kind):
    source = open_source(write(tmp_path, kind, []))

    assert source.num_rows == 0
    assert source.read_table().num_rows == 0
    assert read_images(source) == []


@every_format
def test_what_is_not_of_the_format_is_refused(tmp_path, kind):
    path = tmp_path / f"cells.{kind}"
    path.write_bytes(b"text" * 9)

    with pytest.raises(SourceError, match=rf"cells\.{kind}"):
        open_source(path).read_table()
    with pytest.raises(SourceError, match=rf"nosuch\.{kind}"):
        open_source(tmp_path / f"nosuch.{kind}").read_table()


@st.composite
def values_and_images(draw):
    encoding = draw(st.sampled_from(["list", "bytes"]))
    dtype = draw(st.sampled_from(["uint8", "uint16", "int32", "float32"]))
    size = st.integers(1, 4)
    values, images = [], []
    for seed in range(draw(st.integers(1, 6))):
        if draw(st.integers(0, 5)) == 0:
            values.append(None)
            images.append(None)
            continue
        image = random_image(draw(st.tuples(size, size, size, size, size)), dtype, seed)
        tile = draw(st.none() | st.tuples(size, size, size))
        planes = encoding == "list" and draw(st.booleans())
        values.append(ome_arrow_value(image, tile=tile, encoding=encoding, as_planes=planes))
        images.append(image)
    return values, images, dtype, encoding


@pytest.mark.parametrize("kind", formats(sorted(WRITERS.keys() - {"parquet"})))
@settings(max_examples=25, deadline=None)
@given(case=values_and_images(), data=st.data())
def test_any_rows_of_any_table_are_what_was_written(tmp_path_factory, kind, case, data):
    values, images, dtype, encoding = case
    folder = tmp_path_factory.mktemp("any")
    source = open_source(write(folder, kind, values, dtype, encoding=encoding))
    with_image = [row for row, image in enumerate(images) if image is not None]
    rows = sorted(data.draw(st.sets(st.sampled_from(with_image)))) if with_image else []

    assert_same(images, read_images(source))
    expected = [image if row in rows else None for row, image in enumerate(images)]
    assert_same(expected, read_images(source, rows))


def read_in_child(source, connection):
    try:
        connection.send([None if one is None else one.tolist() for one in read_images(source)])
    except Exception as error:  # noqa: BLE001 - the parent judges it
        connection.send(error)


def read_elsewhere(source, method):
    """Return what a child process reads, or its error."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=read_in_child, args=(source, theirs))
    process.start()
    result = ours.recv() if ours.poll(60) else "nothing"
    process.join()
    return result


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", formats(sorted(WRITERS.keys() - {"lance"})))
def test_a_forked_child_opens_its_own_file(tmp_path, kind):
    values, images = mixed_values()
    source = open_source(write(tmp_path, kind, values))
    read_images(source)

    result = read_elsewhere(source, "fork")

    assert [None if one is None else one.tolist() for one in images] == result
    assert_same(images, read_images(source))


@pytest.mark.multiprocess
@pytest.mark.library_threads
def test_a_child_forked_from_a_process_that_read_with_lance_is_refused(tmp_path):
    source = open_source(write(tmp_path, "lance", [ome_arrow_value(IMAGES[0])]))
    source.read_table()

    error = read_elsewhere(source, "fork")

    assert isinstance(error, SourceError)
    assert "forked from one that had read with Lance" in str(error)
    assert "multiprocessing_context='forkserver'" in str(error)


@pytest.mark.multiprocess
@pytest.mark.library_threads
@pytest.mark.parametrize("kind", ["lance", "vortex"])
def test_a_loader_starts_workers_in_a_way_that_is_safe_for_libraries_with_threads(
    tmp_path, kind
):
    path = write(tmp_path, kind, [ome_arrow_value(image) for image in IMAGES[:1] * 4])
    dataset = OMEArrowDataset(path, axes="CZYX", dtype=None, preload=False, progress=False)
    dataset[0]

    loader = FastLoader(dataset, batch_size=2, num_workers=1)

    assert loader.multiprocessing_context.get_start_method() != "fork"
    for batch in loader:
        np.testing.assert_array_equal(batch.numpy()[0], IMAGES[0][0])


@every_format
def test_columns_of_texts_and_bytes_are_read_wherever_they_are(tmp_path, kind):
    values = [ome_arrow_value(IMAGES[row]) for row in range(4)]
    texts, contents = ["a", None, "b" * 20, "ü"], [b"a", b"\xff\x00" * 10, None, b""]
    columns = {
        "text": texts,
        "content": contents,
        "both": [{"t": one, "n": 1} for one in texts],
        "lists": pa.array([[one] for one in texts], pa.list_(pa.string())),
    }

    source = open_source(write(tmp_path, kind, values, **columns))

    for name in ("text", "content", "lists"):
        assert list(columns[name] if name != "lists" else columns[name].to_pylist()) == list(
            source.read_column(name)
        )
    assert [one["t"] for one in source.read_column("both")] == texts
    assert source.find_rows(pc.field("content") == b"a").tolist() == [0]
    assert source.find_rows(pc.field("both", "t") == "ü").tolist() == [3]


@every_format
def test_times_of_a_zone_are_compared_and_read_in_utc(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    values = [ome_arrow_value(IMAGES[row]) for row in range(2)]
    times = pa.array([0, 3600 * 10**6], pa.timestamp("us", "UTC"))

    source = open_source(write(tmp_path, kind, values, time=times))

    assert source.find_rows(pc.field("time") > times[0]).tolist() == [1]
    assert [str(one) for one in source.read_column("time")] == [
        "1970-01-01 00:00:00+00:00",
        "1970-01-01 01:00:00+00:00",
    ]


@every_format
@pytest.mark.parametrize("cache", ["shared", "disk", "none"])
@pytest.mark.parametrize("preload", [True, False])
def test_two_columns_of_images_of_one_file_are_not_mistaken_for_each_other(
    tmp_path, kind, cache, preload
):
    values = [ome_arrow_value(random_image((1, 1, 1, 5, 4), seed=row)) for row in range(6)]
    path = write(tmp_path, kind, values, second=image_array(values[::-1]))
    options = {"preload": preload, "cache": cache, "progress": False}
    if cache == "disk":
        options["cache_dir"] = tmp_path

    first = OMEArrowDataset(path, "image", **options)
    second = OMEArrowDataset(path, "second", **options)

    rows = [4, 0, 1, 4]
    expected = first.get_batch([5 - row for row in rows])
    assert torch.equal(expected, second.get_batch(rows))
    assert not torch.equal(expected, first.get_batch(rows))


@every_format
@pytest.mark.parametrize("name", ["cell image", "Bild-ü", "ima`ge", 'a"b', "select"])
def test_a_column_of_any_name_is_read(tmp_path, kind, name):
    if kind == "lance" and "`" in name:
        pytest.skip("Lance itself cannot read what it has written by such a name")
    values, images = mixed_values()
    array = image_array(values, "uint16", encoding="list")
    table = pa.table({name: array, f"{name} label": range(len(array))})
    if kind not in {"parquet", "arrow", "feather"}:
        pytest.importorskip(kind)
    WRITERS[kind](table, tmp_path / f"cells.{kind}")

    source = open_source(tmp_path / f"cells.{kind}")

    assert_same(images, read_images(source))
    assert source.read_column(f"{name} label").tolist() == list(range(7))


@every_format
@pytest.mark.parametrize("name", ["a:b", "~a", "a b%20#"])
def test_a_file_of_any_name_is_read_from_where_the_process_is(
    tmp_path, monkeypatch, kind, name
):
    if os.name == "nt" and ":" in name:
        pytest.skip("Windows has no such names")
    values, images = mixed_values()
    path = write(tmp_path, kind, values)
    monkeypatch.chdir(path.rename(tmp_path / f"{name}.{kind}").parent)

    assert_same(images, read_images(open_source(f"{name}.{kind}")))


COUNT_FAULTS_BY_LANCE = """
import resource, sys
import numpy as np
from fastloader import OMEArrowDataset

dataset = OMEArrowDataset(sys.argv[1], preload=False, cache="none", dtype=None)
dataset[0]
for _ in range(2):  # the first takes memory in any case
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(1 << 20, np.uint8) for _ in range(8)]
        del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.multiprocess
@pytest.mark.library_threads
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
def test_whoever_reads_with_lance_takes_no_new_pages_for_each_read(tmp_path):
    image = random_image((1, 1, 1, 8, 8), seed=0)
    path = write(tmp_path, "lance", [ome_arrow_value(image)] * 4)

    command = [sys.executable, "-c", COUNT_FAULTS_BY_LANCE, str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert int(printed) < 20 * 8 * 100  # of 256 pages each


def test_a_batch_is_let_go_of_before_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(_batch_rows, "_MIN_READ_BYTES", 1)
    source = open_source(write(tmp_path, "duckdb", [ome_arrow_value(one) for one in IMAGES]))
    source.read_table()
    read_fields, is_held = DuckDBTable.read_fields, []

    def copied(*args):
        for numbers, batch in read_fields(*args):
            content = np.frombuffer(batch.serialize(), np.uint8).copy()
            copy = pa.ipc.read_record_batch(pa.py_buffer(content), batch.schema)
            reference = weakref.ref(content)
            del content
            yield numbers, copy
            del copy
            is_held.append(reference() is not None)

    monkeypatch.setattr(DuckDBTable, "read_fields", copied)

    assert_same(IMAGES, read_images(source))
    assert len(is_held) == len(IMAGES)
    assert not any(is_held)
