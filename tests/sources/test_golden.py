"""Tables of ome-arrow and of CytoDataFrame: the pixels that their own readers give."""

import importlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastloader import OMEArrowDataset
from fastloader.errors import ImageDataError, SettingsError
from fastloader.sources import open_source
from tests.ome_arrow_tables import ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images
from tests.sources.test_formats import WRITERS, every_format, write

DATA = Path(__file__).parents[1] / "data"
WILD = DATA / "BR00117006.ome.parquet"
COMPOSITE = "Image_FileName_OrigAGP_OMEArrow_COMP"
FILES = {
    "odd_rows_list": ["odd_0", None, "odd_2", "odd_3", "odd_4", "odd_5"],
    "dtypes_bytes": [f"dtype_{d}" for d in ("uint8", "uint16", "int32", "float32", "float64")],
    "nf1_uniform_bytes_leafzstd": [("nf1", row) for row in range(3)],
}


def golden(name):
    """Return the images of a file."""
    with np.load(DATA / "ome_arrow" / "expected.npz") as arrays:
        found = []
        for key in FILES[name]:
            if key is None:
                found.append(None)
            else:
                found.append(arrays[key] if isinstance(key, str) else arrays[key[0]][key[1]])
        return found


def converted(name, kind, folder):
    """Return a file of another format with the table of one of `FILES`."""
    if kind not in {"parquet", "arrow", "feather"}:
        pytest.importorskip(kind)
    table = pq.read_table(DATA / "ome_arrow" / f"{name}.parquet")
    WRITERS[kind](table, folder / f"cells.{kind}")
    return folder / f"cells.{kind}"


@every_format
@pytest.mark.parametrize("name", FILES)
def test_what_ome_arrow_wrote_is_read_from_every_format(tmp_path, name, kind):
    source = open_source(converted(name, kind, tmp_path))

    assert_same(golden(name), read_images(source))
    last = len(FILES[name]) - 1
    assert_same([*[None] * last, golden(name)[last]], read_images(source, [last]))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_reader_of_ome_arrow_gives_the_same(name):
    ome_arrow = pytest.importorskip("ome_arrow")
    column = pq.read_table(DATA / "ome_arrow" / f"{name}.parquet").column("ome_image")

    for value, image in zip(column, golden(name), strict=True):
        if image is not None:
            theirs = ome_arrow.to_numpy(value.as_py(), dtype=image.dtype)
            np.testing.assert_array_equal(image, theirs.reshape(image.shape))


def composite_as_py(row):
    value = pq.read_table(WILD)[COMPOSITE][row].as_py()
    meta = value["pixels_meta"]
    shape = (meta["size_y"], meta["size_x"], 3)
    return np.array(value["planes"][0]["pixels"], np.uint16).reshape(shape).transpose(2, 0, 1)


def test_interleaved_composites_are_read_as_three_channels_on_request():
    source = open_source(WILD, COMPOSITE, rgb="interleaved")

    images = read_images(source)

    for row, image in enumerate(images):
        assert image.shape[:3] == (1, 3, 1)
        np.testing.assert_array_equal(composite_as_py(row), image[0, :, 0])
    np.testing.assert_array_equal(
        images[1][:, [2, 0]], read_images(source, [1], channels=[2, 0])[1]
    )
    assert source.read_channel_names()[0] == ("red", "green", "blue")


def test_a_dataset_of_composites_gives_colour_images():
    dataset = OMEArrowDataset(WILD, COMPOSITE, rgb="interleaved", dtype=None, progress=False)

    np.testing.assert_array_equal(composite_as_py(2), dataset[2].numpy())


@every_format
def test_interleaved_tiles_are_read_from_every_format(tmp_path, kind):
    image = random_image((1, 3, 2, 6, 5))
    stored = image.transpose(0, 2, 3, 4, 1).reshape(1, 1, 2, 6, 15)
    value = ome_arrow_value(stored, tile=(1, 4, 9))
    value["pixels_meta"]["size_x"] = 5
    for chunk in value["chunks"]:
        chunk["x"] //= 3
        chunk["shape_x"] //= 3

    source = open_source(write(tmp_path, kind, [value, None]), rgb="interleaved")

    assert_same([image, None], read_images(source))


def test_interleaved_colours_need_one_channel(tmp_path):
    path = write(tmp_path, "parquet", [ome_arrow_value(random_image((1, 2, 1, 3, 4)))])

    with pytest.raises(ImageDataError, match="row 0: rgb='interleaved' is for images of one"):
        open_source(path, rgb="interleaved").read_table()
    with pytest.raises(SettingsError, match="rgb='planar': expected 'interleaved'"):
        open_source(path, rgb="planar")


def test_interleaved_colours_are_not_guessed():
    with pytest.raises(ImageDataError, match=r"rgb='interleaved' reads it"):
        read_images(open_source(WILD, COMPOSITE))


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary_view()], ids=["32", "64", "view"]
)
def test_bytes_of_any_binary_type_are_read(tmp_path, kind):
    images = [random_image((1, 2, 1, 5, 7), seed=seed) for seed in range(3)]
    column = pq.read_table(
        write(
            tmp_path,
            "parquet",
            [ome_arrow_value(im, encoding="bytes") for im in images],
            encoding="bytes",
        )
    )["image"]
    fields = []
    for field in column.type:
        if field.name == "chunks":
            inner = [
                one.with_type(kind) if one.name == "pixel_bytes" else one
                for one in field.type.value_type
            ]
            field = field.with_type(pa.list_(pa.struct(inner)))  # noqa: PLW2901
        fields.append(field)
    array = pa.array(column.to_pylist(), pa.struct(fields))
    path = tmp_path / "cells.arrow"
    importlib.import_module("pyarrow.feather").write_feather(
        pa.table({"image": array}), path, compression="uncompressed"
    )

    assert_same(images, read_images(open_source(path)))
