"""What only DuckDB does: statistics in place of reads, and one database for all connections."""

import gc

import pytest

from fastloader.errors import SourceError
from fastloader.sources import open_source
from fastloader.sources._duckdb import DuckDBTable
from fastloader.sources._duckdb_file import DuckDBFile
from fastloader.writing import convert
from tests.ome_arrow_tables import ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images
from tests.sources.test_formats import write

DTYPE = ("chunks", "dtype")


def write_bytes(folder, *dtypes):
    images = [random_image((1, 1, 1, 3, 4), dtype) for dtype in dtypes]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    return write(folder, "duckdb", values, encoding="bytes"), images


def test_the_pixel_type_of_a_table_is_known_from_its_statistics(tmp_path):
    path, _ = write_bytes(tmp_path, "float32", "float32")

    table = DuckDBTable(path)

    assert table.only_text("image", DTYPE) == "float32"
    assert table.only_text("image", ("pixels_meta", "type")) == "float32"


def test_statistics_of_several_types_tell_none(tmp_path):
    path, images = write_bytes(tmp_path, "uint8", "float64")

    assert DuckDBTable(path).only_text("image", DTYPE) is None
    assert_same(images, read_images(open_source(path)))


def test_duckdb_writes_no_bar_of_its_own_to_the_output(tmp_path):
    path, _ = write_bytes(tmp_path, "uint8")

    shown = DuckDBFile(path).rows("select current_setting('enable_progress_bar')")

    assert shown == [(False,)]


def test_a_file_that_took_the_place_of_one_in_use_is_not_mistaken_for_it(tmp_path):
    path, images = write_bytes(tmp_path, "uint8")
    (tmp_path / "new").mkdir()
    new_path, new_images = write_bytes(tmp_path / "new", "float32", "float32")
    in_use = open_source(path)
    assert_same(images, read_images(in_use))

    new_path.replace(path)

    with pytest.raises(SourceError, match="was replaced while this process has the file"):
        open_source(path)
    in_use.close()
    del in_use
    assert_same(new_images, read_images(open_source(path)))


def test_a_file_is_read_again_after_it_was_converted_in_place(tmp_path):
    path, images = write_bytes(tmp_path, "uint8", "uint8")

    for _ in range(2):
        convert(path, path, overwrite=True, progress=False)

    assert_same(images, read_images(open_source(path)))


def test_a_table_that_nobody_has_any_more_is_no_bar_to_the_file_that_took_its_place(tmp_path):
    path, _ = write_bytes(tmp_path, "uint8")
    (tmp_path / "new").mkdir()
    new_path, new_images = write_bytes(tmp_path / "new", "float32", "float32")
    gc.disable()  # so that it is not by chance that it is gone
    try:
        read_images(open_source(path))
        new_path.replace(path)

        found = read_images(open_source(path))
    finally:
        gc.enable()

    assert_same(new_images, found)
