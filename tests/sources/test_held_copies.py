"""Pixels of mapped files are copied several batches at once, and counted once they are there."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from fastloader.shm import ArrayWriter
from fastloader.sources import _table_source, open_source
from fastloader.sources._held_copies import HeldCopies
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image


def test_views_are_held_until_they_are_flushed_and_memory_of_its_own_is_not():
    written = []
    copies = HeldCopies(lambda offset, array: written.append((offset, array.tolist())), 6)
    pixels = np.arange(8, dtype=np.uint8)

    copies(0, pixels[:4])
    assert not copies.is_full
    copies(20, pixels[4:].copy())
    copies(4, pixels[4:6])

    assert copies.is_full
    assert written == [(20, [4, 5, 6, 7])]
    copies.flush()
    assert written == [(20, [4, 5, 6, 7]), (0, [0, 1, 2, 3]), (4, [4, 5])]
    copies.flush()
    assert len(written) == 3


def test_nothing_is_held_where_that_would_take_memory():
    written = []
    copies = HeldCopies(lambda offset, array: written.append(offset), 0)

    copies(3, np.arange(8)[2:])

    assert copies.is_full
    assert written == [3]


@pytest.mark.parametrize("held_images", [1, 2, 100])
@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_images_are_counted_once_their_pixels_are_there(
    tmp_path, monkeypatch, held_images, compression, num_threads
):
    images = [random_image((1, 2, 1, 5, 4), seed=seed) for seed in range(9)]
    num_bytes = images[0].nbytes
    monkeypatch.setattr(_table_source, "_HELD_BYTES", held_images * num_bytes)
    values = [ome_arrow_value(one, as_planes=row > 6) for row, one in enumerate(images)]
    table = pa.table({"image": image_array(values)})
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(tmp_path / "a.arrow", table.schema, options=options) as file:
        file.write_table(table, max_chunksize=2)
    source = open_source(tmp_path / "a.arrow")
    source.read_table()
    block = np.zeros(9 * num_bytes, np.uint8)
    counts = []

    def count(num_rows):
        counts.append(num_rows)
        done = sum(counts)
        expected = np.concatenate([one.reshape(-1).view(np.uint8) for one in images[:done]])
        assert np.array_equal(expected, block[: done * num_bytes])

    source.read_images(
        np.arange(9),
        np.arange(9) * num_bytes,
        ArrayWriter(block),
        on_rows=count,
        num_threads=num_threads,
    )

    assert sum(counts) == 9
    if compression is None and held_images == 100:
        assert counts == [7, 2]  # chunks, then planes
