"""Images of a record batch are checked together, and each only once."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from fastloader.errors import ImageDataError
from fastloader.sources import _ome_arrow_pixels, open_source
from fastloader.sources._image_runs import BLOCK_ROWS, KnownRuns
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images

encodings = pytest.mark.parametrize("encoding", ["list", "bytes"])
compressions = pytest.mark.parametrize("compression", [None, "lz4"])


def write(path, values, encoding="list", compression=None, batch_rows=None):
    table = pa.table({"image": image_array(values, encoding=encoding)})
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=batch_rows)
    return open_source(path)


def read_row(source, row, **options):
    return read_images(source, np.array([row]), **options)[row]


def count_checks(monkeypatch):
    checked = []
    check = _ome_arrow_pixels.find_pieces

    def find_pieces(column, name, images, *arguments):
        checked.append(len(images))
        return check(column, name, images, *arguments)

    monkeypatch.setattr(_ome_arrow_pixels, "find_pieces", find_pieces)
    return checked


@encodings
@compressions
def test_a_row_is_not_checked_again(tmp_path, monkeypatch, encoding, compression):
    images = [random_image((1, 2, 1, 3, row + 2), seed=row) for row in range(9)]
    values = [ome_arrow_value(one, encoding=encoding) for one in images]
    source = write(tmp_path / "a.arrow", values, encoding, compression, batch_rows=3)
    source.read_table()
    checked = count_checks(monkeypatch)

    for row in (4, 8, 4, 3, 7, 5, 0, 1, 2, 0):
        assert np.array_equal(read_row(source, row), images[row])
    some = [1, 3, 4, 8]
    found = read_images(source, some)
    assert_same([images[row] for row in some], [found[row] for row in some])

    if compression is None:
        assert checked == [3, 3, 3]
    else:  # several record batches at once are decompressed by several threads, and joined
        assert checked == [3, 3, 3, 4]


@encodings
def test_rows_of_a_long_record_batch_are_checked_with_some_of_their_neighbours(
    tmp_path, monkeypatch, encoding
):
    num_rows = 2 * BLOCK_ROWS + 7
    images = [random_image((1, 1, 1, 2, 2), seed=row) for row in range(num_rows)]
    values = [ome_arrow_value(one, encoding=encoding) for one in images]
    source = write(tmp_path / "a.arrow", values, encoding)
    source.read_table()
    checked = count_checks(monkeypatch)

    for row in np.random.default_rng(5).permutation(num_rows).tolist():
        assert np.array_equal(read_row(source, row), images[row])

    assert sorted(checked) == [7, BLOCK_ROWS, BLOCK_ROWS]


@encodings
@compressions
def test_a_damaged_image_spoils_no_others_and_is_named_each_time(
    tmp_path, encoding, compression
):
    images = [random_image((1, 2, 1, 3, 4), seed=row) for row in range(5)]
    values = [ome_arrow_value(one, encoding=encoding) for one in images]
    values[2]["chunks"][1]["c"] = 7
    source = write(tmp_path / "a.arrow", values, encoding, compression)

    for row in (1, 2, 0, 2, 4, 2, 3):
        if row == 2:
            with pytest.raises(ImageDataError, match=r"a\.arrow.*row 2.*7"):
                read_row(source, row)
        else:
            assert np.array_equal(read_row(source, row), images[row])


@encodings
@compressions
def test_images_of_all_kinds_in_one_record_batch(tmp_path, encoding, compression):
    images = [random_image((1, 2, 2, 6, 4 + row % 2), seed=row) for row in range(8)]
    values = [ome_arrow_value(one, encoding=encoding) for one in images]
    values[1] = ome_arrow_value(images[1], encoding=encoding, tile=(1, 2, 3))
    values[3] = images[3] = None
    values[4] = ome_arrow_value(images[4], as_planes=True)
    values[6] = ome_arrow_value(images[6], encoding=encoding, order=lambda pieces: pieces[::-1])
    source = write(tmp_path / "a.arrow", values, encoding, compression)

    for row in (0, 1, 2, 4, 5, 6, 7, 6, 5, 4, 2, 1, 0):
        assert np.array_equal(read_row(source, row), images[row])


@encodings
def test_a_choice_of_channels_is_not_taken_for_another(tmp_path, encoding):
    images = [random_image((1, 3, 1, 3, 4), seed=row) for row in range(4)]
    source = write(
        tmp_path / "a.arrow",
        [ome_arrow_value(one, encoding=encoding) for one in images],
        encoding,
    )

    for channels in ([2, 0], None, [1], [0, 2], [2, 0]):
        for row in (3, 0, 3):
            found = read_row(source, row, channels=channels)
            assert np.array_equal(found, images[row][:, channels or slice(None)])


def test_what_is_known_of_many_blocks_is_forgotten():
    known = KnownRuns()

    for number in range(1000):
        known.put(number, None)

    assert 1 <= len(known) <= 64
    assert 999 in known
