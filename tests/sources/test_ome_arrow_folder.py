"""Folders that ome-arrow writes: the pixels of every image, whatever the order of its chunks."""

import itertools
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources import OmeArrowFolder, open_source
from tests.image_files import assert_images, random_pixels, read_all

AXES = "tczyx"


def write_folder(
    folder, images, chunk_shape=(1, 1, 1, 4, 4), *, seed=None, row_group_size=2, change=None
):
    """Write images as ome-arrow 0.1.0 does, chunks in random order if there is a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, chunks = [], []
    for number, pixels in enumerate(images):
        steps = [min(step, size) for step, size in zip(chunk_shape, pixels.shape, strict=True)]
        rows.append({
            "image_id": f"image-{number}",
            "name": f"name {number}",
            "dtype": pixels.dtype.name,
            **{f"size_{axis}": n for axis, n in zip(AXES, pixels.shape, strict=True)},
            **{f"chunk_{axis}": n for axis, n in zip(AXES, steps, strict=True)},
            "channels_json": json.dumps([{"name": f"c{c}"} for c in range(pixels.shape[1])]),
        })
        ranges = [range(0, n, step) for n, step in zip(pixels.shape, steps, strict=True)]
        for origin in itertools.product(*ranges):
            box = tuple(slice(a, a + n) for a, n in zip(origin, steps, strict=True))
            part = pixels[box]
            chunks.append({
                "image_id": f"image-{number}",
                **dict(zip(AXES, origin, strict=True)),
                **{f"shape_{axis}": n for axis, n in zip(AXES, part.shape, strict=True)},
                "dtype": pixels.dtype.name,
                "pixel_bytes": part.tobytes(),
            })
    if seed is not None:
        np.random.default_rng(seed).shuffle(chunks)
    if change is not None:
        change(rows, chunks)
    kinds = [("image_id", pa.string()), *((axis, pa.int32()) for axis in AXES)]
    kinds += [(f"shape_{axis}", pa.int32()) for axis in AXES]
    kinds += [("dtype", pa.string()), ("pixel_bytes", pa.large_binary())]
    table = pa.Table.from_pylist(chunks, pa.schema(kinds))
    pq.write_table(pa.Table.from_pylist(rows), folder / "images.parquet")
    pq.write_table(table, folder / "chunks.parquet", row_group_size=row_group_size)
    manifest = {"type": "ome.arrow", "version": "0.1.0", "layout": "typed-chunk-dataset"}
    (folder / "_ome_arrow_dataset.json").write_text(json.dumps(manifest))
    return folder


@st.composite
def folders(draw):
    size = st.integers(1, 7)
    shapes = draw(st.lists(st.tuples(size, size, size, size, size), min_size=1, max_size=4))
    dtypes = st.sampled_from(["uint8", "uint16", "float32", "bool"])
    images = [random_pixels(shape, draw(dtypes), seed) for seed, shape in enumerate(shapes)]
    return images, draw(st.tuples(size, size, size, size, size)), draw(st.integers(0, 5))


@settings(max_examples=40, deadline=None)
@given(case=folders(), group=st.integers(1, 20), in_place=st.booleans(), data=st.data())
def test_any_images_are_read_as_they_were_written(
    tmp_path_factory, case, group, in_place, data
):
    images, chunk_shape, seed = case
    folder = tmp_path_factory.mktemp("any")
    write_folder(folder, images, chunk_shape, seed=seed, row_group_size=group)
    rows = sorted(data.draw(st.sets(st.sampled_from(range(len(images))), min_size=1)))

    actual = read_all(OmeArrowFolder(folder), rows, in_place=in_place)

    assert_images([images[row] for row in rows], actual)


def test_channels_are_chosen_in_any_order(tmp_path):
    pixels = random_pixels((1, 3, 1, 6, 6))

    source = OmeArrowFolder(write_folder(tmp_path, [pixels]))

    assert_images([pixels[:, [2, 0]]], read_all(source, channels=[2, 0]))
    assert source.read_channel_names() == [("c0", "c1", "c2")]


def test_many_images_are_read_by_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("fastloader.sources._ome_arrow_folder._PART_BYTES", 1)
    images = [random_pixels((1, 2, 1, 6, 6), seed=seed) for seed in range(9)]
    counts = []

    source = OmeArrowFolder(write_folder(tmp_path, images, seed=0))

    assert_images(images, read_all(source, num_threads=3, on_rows=counts.append))
    assert sum(counts) == 9


def test_the_folder_is_recognised_and_can_travel(tmp_path):
    pixels = random_pixels((1, 2, 1, 6, 6))
    write_folder(tmp_path, [pixels])

    source = pickle.loads(pickle.dumps(open_source(tmp_path)))

    assert isinstance(source, OmeArrowFolder)
    assert_images([pixels], read_all(source))


def test_the_manifest_stands_for_the_folder(tmp_path):
    write_folder(tmp_path, [random_pixels((1, 2, 1, 6, 6))])

    assert open_source(tmp_path / "_ome_arrow_dataset.json").num_rows == 1


def test_columns_of_the_images_are_at_hand(tmp_path):
    source = OmeArrowFolder(write_folder(tmp_path, [random_pixels((1, 1, 1, 4, 4))] * 3))

    assert source.column_names == ("image_id", "name")
    assert source.read_column("name") == ["name 0", "name 1", "name 2"]
    assert source.find_rows(pc.field("image_id") == "image-1").tolist() == [1]


def test_the_fingerprint_changes_with_the_pixels(tmp_path):
    first = OmeArrowFolder(write_folder(tmp_path / "a", [random_pixels((1, 1, 1, 4, 4))]))
    other = write_folder(tmp_path / "b", [random_pixels((1, 1, 1, 4, 4), seed=1)])

    assert OmeArrowFolder(tmp_path / "a").fingerprint == first.fingerprint
    assert OmeArrowFolder(other).fingerprint != first.fingerprint


BROKEN = {
    "missing chunk": (lambda rows, chunks: chunks.pop(3), "image 0: expected 8 chunks"),
    "double chunk": (
        lambda rows, chunks: chunks.__setitem__(3, chunks[2]),
        "of which 7 differ",
    ),
    "outside": (lambda rows, chunks: chunks[0].update(x=400), "are not in the grid of image 0"),
    "between": (lambda rows, chunks: chunks[1].update(x=3), "are not in the grid of image 0"),
    "bytes": (
        lambda rows, chunks: chunks[2].update(pixel_bytes=b"123"),
        "row 2: expected 32 bytes of uint16 for image 0, but got 3",
    ),
    "other type": (
        lambda rows, chunks: chunks[2].update(dtype="int16"),
        "but got 32 of int16",
    ),
    "null size": (lambda rows, chunks: rows[0].update(size_x=None), "size_x is null"),
    "zero": (lambda rows, chunks: rows[0].update(size_x=0), "sizes T, C, Z, Y, X of 1 or more"),
    "absurd": (lambda rows, chunks: rows[0].update(size_x=2**45), r"at most 2\*\*44 pixels"),
    "unknown type": (lambda rows, chunks: rows[0].update(dtype="quad"), "the dtype 'quad' is"),
    "zero step": (lambda rows, chunks: rows[0].update(chunk_x=0), "are not in the grid"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_tables_are_told(tmp_path, change, message):
    write_folder(tmp_path, [random_pixels((1, 2, 1, 8, 6))], change=change)

    with pytest.raises(ImageDataError, match=message):
        read_all(OmeArrowFolder(tmp_path))


def test_another_layout_is_refused(tmp_path):
    write_folder(tmp_path, [random_pixels((1, 2, 1, 8, 6))])
    (tmp_path / "_ome_arrow_dataset.json").write_text('{"layout": "newer"}')

    with pytest.raises(SourceError, match="the layout is 'newer', but only"):
        OmeArrowFolder(tmp_path)


def test_a_missing_file_is_told(tmp_path):
    write_folder(tmp_path, [random_pixels((1, 2, 1, 8, 6))])
    (tmp_path / "chunks.parquet").unlink()

    with pytest.raises(SourceError, match=r"chunks\.parquet cannot be read"):
        OmeArrowFolder(tmp_path)


def test_a_missing_column_is_told(tmp_path):
    write_folder(tmp_path, [random_pixels((1, 2, 1, 8, 6))])
    path = tmp_path / "images.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["size_x"]), path)

    with pytest.raises(SourceError, match=r"images\.parquet lacks the columns size_x"):
        OmeArrowFolder(tmp_path)
