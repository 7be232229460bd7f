"""Tables of images are written bit by bit as they were, whole or not at all."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fastloader import OMEArrowDataset, convert, write_images
from fastloader.errors import DestinationError, ImageDataError, SettingsError, ShapeError
from fastloader.sources import PIXEL_TYPES, open_source
from fastloader.writing import TABLE_FORMATS
from tests.ome_arrow_tables import ome_arrow_value, random_image, read_as_py
from tests.ome_arrow_tables import write_images as write

pytestmark = pytest.mark.library_threads  # Lance's and Vortex's live on

ENDINGS = ["parquet", "arrow", "lance", "duckdb", "vortex"]
CELLS = Path(__file__).parents[2] / "data" / "nf1_cells.parquet"
EXTRAS = {"lance": "lance", "duckdb": "duckdb", "vortex": "vortex"}
every_format = pytest.mark.parametrize("ending", ENDINGS)


def read_table(path):
    """Read a table with the format's own package."""
    ending = path.suffix[1:]
    if ending == "parquet":
        return pq.read_table(path)
    if ending == "arrow":
        return pa.ipc.open_file(path).read_all()
    if ending == "lance":
        return pytest.importorskip("lance").dataset(str(path)).to_table()
    if ending == "duckdb":
        with pytest.importorskip("duckdb").connect(str(path), read_only=True) as connection:
            return connection.sql("from images").to_arrow_table()
    return pytest.importorskip("vortex").open(str(path)).to_arrow().read_all()


def images_in(path):
    column = read_table(path)["ome_arrow"].combine_chunks()
    return read_as_py(
        column.cast(column.type) if isinstance(column, pa.ChunkedArray) else column
    )


def skip_without_extra(ending):
    if ending in EXTRAS:
        pytest.importorskip(EXTRAS[ending])


def assert_same(expected, actual):
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        if one is None:
            assert other is None
            continue
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes()


@every_format
def test_pixels_and_columns_come_back_as_they_were(tmp_path, ending):
    skip_without_extra(ending)
    shapes = [(1, 2, 1, 5, 4), (2, 1, 3, 2, 2), (1, 3, 1, 7, 1)]
    images = [random_image(shapes[i % 3], ["uint8", "float32"][i % 2], i) for i in range(20)]
    images[4] = None
    values = [None if i is None else ome_arrow_value(i, encoding="bytes") for i in images]
    notes = [None, "é", ""] + ["x"] * 17
    source = write(
        tmp_path / "source.parquet", values, encoding="bytes", number=range(20), note=notes
    )

    written = convert(source, tmp_path / f"out.{ending}", rows_per_group=8)

    assert written.num_images == 20
    assert written.num_bytes > 0
    assert_same(images, images_in(written.path))
    table = read_table(written.path)
    assert table["number"].to_pylist() == list(range(20))
    assert table["note"].to_pylist() == notes
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        f"out.{ending}",
        "source.parquet",
    ]


@pytest.mark.parametrize(
    ("compression", "side", "expected"),
    [
        ("zstd", 1024, [2] * 9),
        ("lz4", 2048, [1] * 18),
        (None, 1024, [16, 2]),
        ("zstd", 8, [18]),
    ],
)
def test_few_images_share_what_is_decompressed_for_one_of_them(
    tmp_path, compression, side, expected
):
    images = np.broadcast_to(np.zeros((), np.uint16), (18, side, side))

    written = write_images(images, tmp_path / "out.arrow", compression=compression)

    file = pa.ipc.open_file(written.path)
    found = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
    assert found == expected


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*(st.integers(1, 4) for _ in range(5))),
    dtype=st.sampled_from(sorted(set(PIXEL_TYPES) - {"bool"})),
    num_images=st.integers(0, 7),
    rows_per_group=st.integers(1, 4),
    compression=st.sampled_from(["zstd", "lz4", None]),
)
def test_any_array_comes_back_as_it_was(
    tmp_path_factory, shape, dtype, num_images, rows_per_group, compression
):
    path = tmp_path_factory.mktemp("any") / "out.parquet"
    images = np.stack(
        [random_image(shape, dtype, seed) for seed in range(num_images)]
        or [np.zeros(shape, dtype)]
    )[:num_images]

    write_images(images, path, rows_per_group=rows_per_group, compression=compression)

    assert_same(list(images), images_in(path))
    if num_images:
        dataset = OMEArrowDataset(path, dtype=None, axes="TCZYX", preload=False)
        np.testing.assert_array_equal(images, dataset.get_batch(range(num_images)).numpy())


@every_format
@pytest.mark.parametrize(
    "column",
    [
        pa.array([None] * 4 + ["a"]),
        pa.array([None] * 4 + [5], pa.int16()),
        pa.array([[]] * 4 + [[1, 2]]),
        pa.array([{"a": None}] * 4 + [{"a": "b"}]),
        pa.array([Decimal("1.25")] * 4 + [Decimal("12345.5")], pa.decimal128(9, 2)),
        pa.array([None, *[2**64 - 1] * 4], pa.uint64()),
    ],
    ids=lambda column: str(column.type).partition("<")[0],
)
def test_a_column_has_the_type_of_all_its_values_not_of_the_first(tmp_path, ending, column):
    skip_without_extra(ending)
    values = [ome_arrow_value(random_image((1, 1, 1, 2, 3), seed=seed)) for seed in range(5)]
    write(tmp_path / "a.parquet", values, column=column)

    convert(tmp_path / "a.parquet", tmp_path / f"b.{ending}", rows_per_group=2)

    read = open_source(tmp_path / f"b.{ending}").read_column("column")
    assert list(read) == column.to_pylist()


def test_channels_keep_their_names(tmp_path):
    images = np.stack([random_image((1, 2, 1, 4, 3), seed=i) for i in range(5)])
    path = tmp_path / "out.parquet"
    write_images(images[:, 0, :, 0], path, channel_names=["DAPI", "RNA"])

    dataset = OMEArrowDataset(path, channels=["RNA"], dtype=None)

    np.testing.assert_array_equal(images[:, 0, 1:, 0], dataset.get_batch(range(5)).numpy())


def test_ome_arrow_reads_it(tmp_path):
    ome_arrow = pytest.importorskip("ome_arrow")
    image = random_image((2, 3, 2, 5, 4))
    write_images([image], tmp_path / "out.parquet", channel_names=["a", "b", "c"])

    value = pq.read_table(tmp_path / "out.parquet")["ome_arrow"][0]

    np.testing.assert_array_equal(image, ome_arrow.to_numpy(value, dtype=np.uint16))


@pytest.mark.parametrize(
    ("axes", "shape", "stored_order", "expected"),
    [
        (None, (4, 3), "YX", (1, 1, 1, 4, 3)),
        (None, (2, 4, 3), "CYX", (1, 2, 1, 4, 3)),
        (None, (2, 5, 4, 3), "CZYX", (1, 2, 5, 4, 3)),
        ("YXC", (4, 3, 2), "CYX", (1, 2, 1, 4, 3)),
        ("ZYX", (5, 4, 3), "ZYX", (1, 1, 5, 4, 3)),
        ("XYT", (3, 4, 6), "TYX", (6, 1, 1, 4, 3)),
    ],
)
def test_axes_are_told_by_number_or_by_name(tmp_path, axes, shape, stored_order, expected):
    image = random_image(shape)
    write_images([image], tmp_path / "out.parquet", axes=axes)

    (written,) = images_in(tmp_path / "out.parquet")

    assert written.shape == expected
    order = [(axes or stored_order).index(axis) for axis in stored_order]
    np.testing.assert_array_equal(image.transpose(order), written.squeeze())


def test_big_endian_arrays_keep_their_values(tmp_path):
    image = random_image((4, 3)).astype(">u2")
    write_images([image], tmp_path / "out.parquet")

    (written,) = images_in(tmp_path / "out.parquet")

    np.testing.assert_array_equal(image, written[0, 0, 0])
    assert written.dtype == np.dtype("<u2")


class Pairs:
    """A map-style dataset as users write it."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.full((1, 3, 2), index, dtype=torch.uint8), index * 10


@pytest.mark.parametrize(
    ("samples", "columns"),
    [
        (Pairs(), {"label": [0, 10, 20, 30, 40]}),
        (
            ({"image": np.full((3, 2), i, np.uint8), "well": "ab"[i % 2]} for i in range(5)),
            {"well": list("ababa")},
        ),
        (
            TensorDataset(
                torch.arange(5, dtype=torch.uint8)[:, None, None].expand(5, 3, 2),
                torch.arange(5) / 2,
                torch.eye(5)[:, :2],
            ),
            {
                "label_0": [0.0, 0.5, 1.0, 1.5, 2.0],
                "label_1": torch.eye(5)[:, :2].tolist(),
            },
        ),
    ],
    ids=["map-style", "generator of dicts", "tensor dataset"],
)
def test_datasets_keep_what_is_beside_the_image(tmp_path, samples, columns):
    written = write_images(samples, tmp_path / "out.parquet", rows_per_group=2)

    table = read_table(written.path)
    assert written.num_images == 5
    assert {name: table[name].to_pylist() for name in columns} == columns
    assert [int(image.max()) for image in images_in(written.path)] == list(range(5))


@pytest.mark.parametrize("num_images", [3, 40, 100])
def test_row_groups_have_16_to_64_images(tmp_path, num_images):
    small = np.zeros((num_images, 8, 8), np.uint8)
    write_images(small, tmp_path / "small.parquet")
    large = np.zeros((num_images, 1024, 1024), np.uint8)
    write_images(large, tmp_path / "large.parquet")

    for name, size in (("small", 64), ("large", 16)):
        metadata = pq.ParquetFile(tmp_path / f"{name}.parquet").metadata
        sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
        assert sizes == [size] * (num_images // size) + [num_images % size] * (
            num_images % size > 0
        )


def test_pages_have_checksums_and_pixels_no_dictionary(tmp_path):
    write_images(np.zeros((20, 64, 64), np.uint8), tmp_path / "out.parquet")

    group = pq.ParquetFile(tmp_path / "out.parquet").metadata.row_group(0)
    by_path = {
        group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)
    }
    pixels = by_path["ome_arrow.chunks.list.element.pixel_bytes"]
    assert pixels.compression == "ZSTD"
    assert not pixels.has_dictionary_page


class Explodes:
    """Fails after some images."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 30:
            raise ZeroDivisionError("sample 30")
        return np.zeros((4, 4), np.uint8)


@every_format
def test_an_error_in_the_middle_keeps_its_type_and_leaves_what_was_there(tmp_path, ending):
    skip_without_extra(ending)
    path = tmp_path / f"out.{ending}"
    write_images(np.ones((2, 3, 3), np.uint8), path)

    with pytest.raises(ZeroDivisionError, match="sample 30"):
        write_images(Explodes(), path, overwrite=True, rows_per_group=4)

    assert [image.sum() for image in images_in(path)] == [9, 9]
    assert [file.name for file in tmp_path.iterdir()] == [f"out.{ending}"]


class Interrupts(TensorDataset):
    """Images, of which one is made when somebody presses Ctrl-C, or raises what that raises."""

    def __init__(self, how):
        super().__init__(torch.zeros(40, 4, 4, dtype=torch.uint8))
        self.how = how

    def __getitem__(self, index):
        if index == 30 and self.how == "signal":
            signal.raise_signal(signal.SIGINT)
        elif index == 30:
            raise KeyboardInterrupt
        return super().__getitem__(index)


@every_format
@pytest.mark.parametrize("how", ["signal", "error"])
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_in_the_middle_is_ctrl_c_and_leaves_nothing(tmp_path, ending, how):
    skip_without_extra(ending)

    with pytest.raises(KeyboardInterrupt):
        write_images(Interrupts(how), tmp_path / f"out.{ending}", rows_per_group=4)

    assert not list(tmp_path.iterdir())


@every_format
def test_a_table_is_replaced_only_when_asked(tmp_path, ending):
    skip_without_extra(ending)
    path = tmp_path / f"out.{ending}"
    write_images(np.ones((2, 3, 3), np.uint8), path)

    with pytest.raises(DestinationError, match=r"exists already.*overwrite=True"):
        write_images(np.zeros((1, 3, 3), np.uint8), path)
    write_images(np.zeros((1, 3, 3), np.uint8), path, overwrite=True)

    assert [image.sum() for image in images_in(path)] == [0]


def test_a_folder_that_is_no_table_is_never_replaced(tmp_path):
    folder = tmp_path / "cells"
    folder.mkdir()
    tifffile.imwrite(folder / "a.tif", np.ones((3, 3), np.uint8))

    with pytest.raises(DestinationError, match="other things than a table"):
        convert(folder, folder, format="parquet", overwrite=True)

    assert [path.name for path in folder.iterdir()] == ["a.tif"]
    (folder / "a.tif").unlink()
    assert write_images([np.ones((3, 3))], folder, format="parquet", overwrite=True).num_images


def test_a_source_that_is_broken_in_the_middle_leaves_nothing(tmp_path):
    values = [ome_arrow_value(random_image((1, 1, 1, 3, 3))) for _ in range(4)]
    values[3]["chunks"][0]["x"] = 1
    source = write(tmp_path / "source.parquet", values)

    with pytest.raises(ImageDataError, match="row 3"):
        convert(source, tmp_path / "out.parquet", rows_per_group=1)

    assert [file.name for file in tmp_path.iterdir()] == ["source.parquet"]


def test_tensors_with_a_gradient_are_written(tmp_path):
    images = torch.arange(12.0).reshape(2, 2, 3).requires_grad_()

    written = write_images(images, tmp_path / "out.parquet")

    assert_same(list(images.detach().numpy()[:, None, None, None]), images_in(written.path))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, None, 7]), [5, None, 7]),
        (pa.chunked_array([["a"], ["b", None]]), ["a", "b", None]),
        (torch.tensor([5, 6, 7], dtype=torch.int8), [5, 6, 7]),
        (torch.eye(3), torch.eye(3).tolist()),
        (np.eye(3), np.eye(3).tolist()),
        ([torch.tensor(5), torch.tensor(6), torch.tensor(7)], [5, 6, 7]),
    ],
    ids=["arrow", "chunked", "tensor", "rows of a tensor", "rows of an array", "tensors"],
)
def test_columns_may_be_of_arrow_or_torch(tmp_path, column, expected):
    written = write_images(
        np.zeros((3, 2, 2)),
        tmp_path / "out.parquet",
        columns={"label": column},
        rows_per_group=2,
    )

    assert read_table(written.path)["label"].to_pylist() == expected


def test_columns_of_pandas_go_by_their_order_not_by_their_index(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"well": ["a", "b", None], "kind": pandas.Categorical(["x", "y", "x"])}, index=[7, 0, 2]
    )

    written = write_images(np.zeros((3, 2, 2)), tmp_path / "out.parquet", columns=frame)

    table = read_table(written.path)
    assert table["well"].to_pylist() == ["a", "b", None]
    assert table["kind"].to_pylist() == ["x", "y", "x"]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")]
)
def test_times_keep_their_nanoseconds(tmp_path, kind):
    pytest.importorskip("pandas")
    values = [ome_arrow_value(random_image((1, 1, 1, 3, 2), seed=seed)) for seed in range(3)]
    times = pa.array([1, None, 2_001], kind)
    source = write(tmp_path / "source.parquet", values, time=times)

    written = convert(source, tmp_path / "out.parquet", rows_per_group=1)

    assert read_table(written.path)["time"].combine_chunks().equals(times)


@every_format
def test_a_table_without_rows_keeps_its_columns(tmp_path, ending):
    skip_without_extra(ending)
    source = write(tmp_path / "source.parquet", [], number=pa.array([], pa.int16()))

    written = convert(source, tmp_path / f"out.{ending}")

    empty = OMEArrowDataset(written.path, label_column="number")
    assert len(empty) == 0
    assert empty.labels.dtype == torch.int64


@pytest.mark.parametrize("destination", [None, 3, b"out.parquet"])
def test_what_is_no_path_is_no_destination(destination):
    with pytest.raises(SettingsError, match="is no path of a table to write"):
        write_images(np.zeros((1, 3, 3)), destination)


def test_options_of_the_source_are_a_dict(tmp_path):
    with pytest.raises(SettingsError, match="source_options=3: expected a dict"):
        convert("images.parquet", tmp_path / "out.parquet", source_options=3)


def test_a_url_is_no_destination(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(
        SettingsError, match=r"s3://\*\*\*@b/x.parquet is a URL: expected a path"
    ):
        write_images(np.zeros((1, 3, 3)), "s3://key:secret@b/x.parquet")

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("images", "options", "error", "message"),
    [
        (None, {}, SettingsError, "images= of type NoneType: expected an array"),
        (
            [np.zeros((3, 3)), None],
            {},
            ShapeError,
            "Sample 1: Expected images with 2 to 5 axes",
        ),
        ([{"img": np.zeros((3, 3))}], {}, ShapeError, "Sample 0 has no 'image', but 'img'"),
        (
            [{"image": np.zeros((3, 3)), "a": 1}, {"image": np.zeros((3, 3))}],
            {},
            SettingsError,
            "Sample 1 has nothing beside its image, but the first one has 'a'",
        ),
        (
            [(np.zeros((3, 3)), 1), (np.zeros((3, 3)), 1, 2)],
            {"rows_per_group": 1},
            SettingsError,
            "Sample 1 has 'label_0', 'label_1' beside its image, but the first one has 'label'",
        ),
        (
            torch.zeros(2, 3, 3, dtype=torch.bfloat16),
            {},
            ShapeError,
            "Sample 0: expected values of a type that NumPy has, but got torch.bfloat16",
        ),
        (np.zeros((2, 3, 3)), {"axes": 3}, SettingsError, "each letter of 'TCZYX'"),
        (
            np.zeros((2, 3, 3)),
            {"format": ["parquet"]},
            SettingsError,
            "expected a name that ends",
        ),
        (
            np.zeros((2, 3, 3)),
            {"compression": ["zstd"]},
            SettingsError,
            "parquet can have zstd",
        ),
        (
            (np.zeros((3, 3)) for _ in range(5)),
            {"columns": {"a": range(3)}},
            SettingsError,
            "'a'. has 3 values for 5 images or more",
        ),
        (
            (np.zeros((3, 3)) for _ in range(5)),
            {"columns": {"a": range(9)}, "rows_per_group": 2},
            SettingsError,
            "'a'. has 9 values for 5 images",
        ),
        (
            [(np.zeros((3, 3)), 1)],
            {"columns": {"label": [2]}},
            SettingsError,
            "Sample 0 has 'label' beside its image, and so does columns=",
        ),
        (np.zeros((2, 3, 3)), {"channel_names": "a"}, SettingsError, "a list of texts"),
        (np.zeros((2, 3, 3)), {"channel_names": [1]}, SettingsError, "a list of texts"),
        (np.zeros((2, 3, 3)), {"columns": [1, 2]}, SettingsError, "columns= of type list"),
        (np.zeros((2, 3, 3)), {"columns": {1: [1, 2]}}, SettingsError, "expected names"),
        (
            np.zeros((2, 3, 3)),
            {"columns": {"a": 1}},
            SettingsError,
            "'a'. of type int: expected",
        ),
        (
            np.zeros((2, 3, 3)),
            {"columns": {"a": {}}},
            SettingsError,
            "'a'. of type dict: expected",
        ),
        (np.zeros((2, 3, 3)), {"rows_per_group": 2.5}, SettingsError, "a whole number"),
        (np.zeros((2, 3)), {}, ShapeError, "2 to 5 axes"),
        (np.zeros((2, 3, 3), complex), {}, ShapeError, "but got complex128"),
        (np.zeros((2, 3, 3)), {"axes": "CYX"}, ShapeError, r"has the shape \(3, 3\)"),
        (np.zeros((2, 3, 3)), {"axes": "YY"}, SettingsError, "each letter of 'TCZYX'"),
        (np.zeros((2, 0, 3)), {}, ShapeError, "each of size 1 or more"),
        (np.zeros((2, 3, 3)), {"channel_names": ["a", "b"]}, ShapeError, "of 1 channels"),
        (np.zeros((2, 3, 3)), {"columns": {"a": [1]}}, SettingsError, "has 1 values for 2"),
        (np.zeros((1, 3, 3)), {"columns": {"ome_arrow": [1]}}, SettingsError, "rename it"),
        (np.zeros((2, 3, 3)), {"rows_per_group": 0}, SettingsError, "expected 1 or more"),
        (np.zeros((2, 3, 3)), {"compression": "gzip"}, SettingsError, "parquet can have zstd"),
        (np.zeros((2, 3, 3)), {"format": "hdf5"}, SettingsError, "expected a name that ends"),
        (
            [(np.zeros((3, 3)), 1), (np.zeros((3, 3)), "b")],
            {"rows_per_group": 1},
            SettingsError,
            "Column 'label', rows from 1: the values are not of int64",
        ),
    ],
)
def test_what_cannot_be_written_is_an_error(tmp_path, images, options, error, message):
    with pytest.raises(error, match=message):
        write_images(images, tmp_path / "out.parquet", **options)

    assert not list(tmp_path.iterdir())


def test_a_name_that_tells_no_format_is_an_error_with_all_there_are(tmp_path):
    with pytest.raises(SettingsError, match=r"\.parquet, \.arrow, \.lance, \.duckdb, \.vortex"):
        write_images(np.zeros((1, 3, 3)), tmp_path / "out.h5")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(DestinationError, match="cannot be written"):
        write_images(np.zeros((1, 3, 3)), tmp_path / "file" / "out.parquet")


@pytest.mark.parametrize("name", TABLE_FORMATS)
def test_a_format_by_name_wins_over_the_ending(tmp_path, name):
    skip_without_extra(name)
    written = write_images(np.zeros((1, 3, 3)), tmp_path / "images", format=name)

    assert written.path.exists()
    assert written.num_bytes > 72


MEASURE = """
import sys, numpy as np, resource
from fastloader import write_images
path, side, first, second = sys.argv[1], *map(int, sys.argv[2:])
class Images:
    def __init__(self, length): self.length = length
    def __len__(self): return self.length
    def __getitem__(self, index):
        return np.random.default_rng(index).integers(0, 255, (side, side), np.uint8)
write_images(Images(first), path, rows_per_group=16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_images(Images(second), path, rows_per_group=16, overwrite=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads peak memory in kB")
@pytest.mark.parametrize(
    ("ending", "side", "first", "second"),
    [
        pytest.param("parquet", 512, 64, 800, id="parquet"),
        pytest.param("duckdb", 150, 6000, 18000, id="duckdb"),  # rows are written by 2048
    ],
)
def test_memory_does_not_grow_with_the_number_of_images(tmp_path, ending, side, first, second):
    skip_without_extra(ending)
    sizes = map(str, (side, first, second))
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / f"out.{ending}"), *sizes],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert int(output) * 1024 < 60e6  # of 190 MB of pixels more, at least


@pytest.mark.multiprocess
@every_format
def test_open_files_live_where_a_format_asks_for_batches_from_other_threads(tmp_path, ending):
    skip_without_extra(ending)
    images = [random_image((1, 1, 1, 5, 4), "uint8", seed) for seed in range(80)]
    write_images(images, tmp_path / "a.arrow", axes="TCZYX")

    # In a process of its own, which would end by a signal.
    target = tmp_path / f"b.{ending}"
    process = multiprocessing.get_context("forkserver").Process(
        target=convert, args=(tmp_path / "a.arrow", target), kwargs={"rows_per_group": 16}
    )
    process.start()
    process.join(60)

    assert process.exitcode == 0
    assert_same(images, images_in(target))


@pytest.mark.parametrize("name", ["plate.well", "plate`s"])
def test_names_that_lance_cannot_read_again_are_refused(tmp_path, name):
    images = np.zeros((2, 3, 3), np.uint8)

    with pytest.raises(SettingsError, match="Lance has no columns with a dot or backtick"):
        write_images(images, tmp_path / "a.lance", columns={name: [1, 2]})

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sides", "num_columns"),
    [
        pytest.param([1, 1500, 1, 2000, 1], 1, id="images of unlike sizes"),
        pytest.param([4] * 3000, 300, id="many columns"),
    ],
)
def test_duckdb_has_the_room_that_a_row_group_needs(tmp_path, sides, num_columns):
    pytest.importorskip("duckdb")
    images = [random_image((1, 1, 1, side, side), "uint16", side) for side in sides]
    columns = {f"column {at}": [float(at)] * len(sides) for at in range(num_columns)}

    written = write_images(images, tmp_path / "it's.duckdb", columns=columns)

    source = open_source(written.path)
    assert written.num_images == source.num_rows == len(sides)
    assert [float(num_columns - 1)] * len(sides) == list(
        source.read_column(f"column {num_columns - 1}")
    )


def column_compressions(path):
    query = "select distinct compression from pragma_storage_info('images')"
    with pytest.importorskip("duckdb").connect(str(path), read_only=True) as connection:
        return {name for (name,) in connection.sql(query).fetchall()}


def test_rows_of_duckdb_files_have_a_key_of_which_readers_see_nothing(tmp_path):
    pytest.importorskip("duckdb")
    images = [random_image((1, 1, 1, 40, 60), "uint16", seed) for seed in range(30)]

    write_images(images, tmp_path / "a.duckdb", axes="TCZYX", rows_per_group=7)
    convert(tmp_path / "a.duckdb", tmp_path / "b.duckdb")

    source = open_source(tmp_path / "b.duckdb")
    assert source.column_names == ()
    assert read_table(tmp_path / "b.duckdb")["fastloader_row"].to_pylist() == list(range(30))
    assert column_compressions(tmp_path / "b.duckdb") <= {"Constant", "Uncompressed"}
    dataset = OMEArrowDataset(tmp_path / "b.duckdb", dtype=None, axes="TCZYX", preload=False)
    assert_same(
        [images[row] for row in (29, 3, 8)], [dataset[row].numpy() for row in (29, 3, 8)]
    )


def test_duckdb_compresses_if_it_is_asked_to(tmp_path):
    pytest.importorskip("duckdb")
    images = [np.zeros((100, 100), np.uint16)] * 30

    written = write_images(images, tmp_path / "a.duckdb", compression="zstd")

    assert "ZSTD" in column_compressions(written.path)
    assert "fastloader_row" not in read_table(written.path).column_names


def test_lance_compresses_pixels_if_it_is_asked_to(tmp_path):
    pytest.importorskip("lance")
    images = [random_image((3, 50, 70), seed=seed) & 3 for seed in range(8)]
    num_bytes = {}

    for codec in ("auto", None, "zstd"):
        path = write_images(images, tmp_path / f"{codec}.lance", compression=codec).path
        num_bytes[codec] = sum(file.stat().st_size for file in path.rglob("*.lance"))
        dataset = OMEArrowDataset(path, dtype=None)
        assert_same(images, [dataset[row].numpy() for row in range(8)])

    pixel_bytes = sum(one.nbytes for one in images)
    assert num_bytes["auto"] == num_bytes[None] >= pixel_bytes > 2 * num_bytes["zstd"]


def test_a_column_cannot_have_the_name_of_the_key_of_duckdb_files(tmp_path):
    pytest.importorskip("duckdb")

    with pytest.raises(SettingsError, match="'fastloader_row' is the number of the row"):
        write_images(
            np.zeros((2, 3, 3)), tmp_path / "a.duckdb", columns={"fastloader_row": "ab"}
        )


KILLED = """
import sys, time, numpy as np
from fastloader import write_images
def images():
    for index in range(1000):
        print(index, flush=True)
        time.sleep(0.01)
        yield np.zeros((4, 4), np.uint8)
write_images(images(), sys.argv[1], rows_per_group=2, overwrite=True)
"""


@pytest.mark.multiprocess
def test_a_kill_in_the_middle_leaves_what_was_there(tmp_path):
    path = tmp_path / "out.parquet"
    write_images(np.ones((2, 3, 3), np.uint8), path)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    while process.stdout.readline().strip() != "20":
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert [image.sum() for image in images_in(path)] == [9, 9]


@every_format
def test_what_is_known_of_an_image_goes_from_format_to_format(tmp_path, ending):
    skip_without_extra(ending)
    tifffile.imwrite(
        tmp_path / "a.ome.tif",
        np.zeros((2, 4, 6), np.uint16),
        metadata={
            "axes": "CYX",
            "Name": "cells",
            "AcquisitionDate": "2024-03-01T12:30:00",
            "PhysicalSizeX": 0.5,
            "PhysicalSizeXUnit": "nm",
            "Channel": {"Name": ["DNA", "RNA"], "EmissionWavelength": [461, 600]},
        },
    )
    source = open_source(tmp_path / "a.ome.tif")
    (expected,) = source.iterate_descriptions()

    first = convert(tmp_path / "a.ome.tif", tmp_path / f"one.{ending}")
    second = convert(first.path, tmp_path / f"two.{ending}")

    (found,) = open_source(second.path).iterate_descriptions()
    assert found.channels[1].emission_um == pytest.approx(0.6)
    assert dataclasses.replace(found, channels=()) == dataclasses.replace(expected, channels=())


def test_channels_described_in_another_number_than_there_are_are_left_out(tmp_path):
    value = ome_arrow_value(random_image((1, 2, 1, 4, 3), "uint8", 0), encoding="bytes")
    value["pixels_meta"]["channels"] *= 2
    source = write(tmp_path / "source.parquet", [value], encoding="bytes")

    written = convert(source, tmp_path / "out.parquet")

    (found,) = open_source(written.path).iterate_descriptions()
    assert found.channels == ()


def test_tables_are_smaller_than_by_the_level_of_zstd_that_arrow_chooses(tmp_path):
    cells = OMEArrowDataset(CELLS, dtype=None, progress=False)
    codec = pa.Codec("zstd")
    path, arrow, again = (tmp_path / name for name in ("a.parquet", "a.arrow", "b.arrow"))

    convert(CELLS, path, progress=False)
    convert(CELLS, arrow, progress=False)

    by_default = sum(codec.compress(image.numpy().tobytes()).size for image in cells)
    assert path.stat().st_size < 0.97 * by_default
    file = pa.ipc.open_file(arrow)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(again, file.schema, options=options) as written:
        for number in range(file.num_record_batches):
            written.write_batch(file.get_batch(number))
    assert arrow.stat().st_size < 0.97 * again.stat().st_size
