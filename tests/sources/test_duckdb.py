"""What only DuckDB does: statistics in place of reads, and one database for all connections."""

import gc

import pytest

from fastloader.errors import SourceError
from fastloader.sources import _duckdb, _duckdb_key, open_source
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

    assert table.only_text("image", [DTYPE]) == "float32"
    assert table.only_text("image", [("pixels_meta", "type")]) == "float32"
    assert table.only_text("image", [DTYPE, ("pixels_meta", "type")]) == "float32"
    assert table.only_text("image", [DTYPE, ("pixels_meta", "dimension_order")]) is None


def test_statistics_of_several_types_tell_none(tmp_path):
    path, images = write_bytes(tmp_path, "uint8", "float64")

    assert DuckDBTable(path).only_text("image", [DTYPE]) is None
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


def write_keyed(folder, key, settings="", key_type="integer"):
    """Write 20 images with a primary key, other keys than numbers of rows, and delete two rows."""
    images = [random_image((1, 1, 1, 3, 4), "uint16", seed) for seed in range(20)]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    ids = range(100, 60, -2)
    path = write(folder, "duckdb", values, encoding="bytes", id=ids, other=range(20))
    with pytest.importorskip("duckdb").connect(str(path)) as connection:
        connection.execute(settings)
        connection.execute(f"alter table images alter id type {key_type}")
        connection.execute("create table keyed as from images")
        connection.execute("drop table images")
        connection.execute(f"alter table keyed add primary key ({key})")
        connection.execute("delete from keyed where other in (3, 4)")
    return path, images[:3] + images[5:]


def read_noting_queries(monkeypatch, path, rows):
    """Return some images of a table, and the queries that gave them."""
    queries, ask = [], DuckDBFile.sql
    source = open_source(path)
    source.read_table()
    with monkeypatch.context() as patched:
        patched.setattr(
            DuckDBFile, "sql", lambda self, query: (queries.append(query), ask(self, query))[1]
        )
        images = read_images(source, rows)
    return [images[row] for row in rows], queries


def test_single_rows_of_a_table_with_a_key_are_fetched_by_it(tmp_path, monkeypatch):
    path, images = write_keyed(tmp_path, "id")

    found, queries = read_noting_queries(monkeypatch, path, [1, 3, 17])

    assert_same([images[1], images[3], images[17]], found)
    plan = DuckDBFile(path).rows(f"explain analyze {queries[-1]}")[0][1]
    assert "Index Scan" in plan


def test_all_rows_of_a_table_with_a_key_are_fetched_one_by_one_where_they_are_large(
    tmp_path, monkeypatch
):
    path, images = write_keyed(tmp_path, "id")
    monkeypatch.setattr(_duckdb_key, "_MAX_DECODED_BYTES", path.stat().st_size - 1)
    monkeypatch.setattr(_duckdb, "_ROWS_PER_CONNECTION", 7)
    connections, connect = [], DuckDBFile._open
    monkeypatch.setattr(
        DuckDBFile, "_open", lambda self: (connections.append(self), connect(self))[1]
    )

    found, queries = read_noting_queries(monkeypatch, path, list(range(18)))

    assert_same(images, found)
    keys = [key for key in range(100, 60, -2) if key not in {94, 92}]
    assert [f'"id" = {key}' for key in keys] == [
        one.split("where ")[1] for one in queries[-18:]
    ]
    assert len(connections) == 4  # one that found the table, and one for each seven rows


def test_all_rows_of_a_table_with_a_key_are_a_stream_where_they_are_small(
    tmp_path, monkeypatch
):
    path, images = write_keyed(tmp_path, "id")
    monkeypatch.setattr(_duckdb_key, "_MAX_DECODED_BYTES", path.stat().st_size)

    found, queries = read_noting_queries(monkeypatch, path, list(range(18)))

    assert_same(images, found)
    assert not any('"id" = ' in query for query in queries)


def test_many_rows_of_a_table_with_a_key_are_decoded_together(tmp_path, monkeypatch):
    path, images = write_keyed(tmp_path, "id")

    found, queries = read_noting_queries(monkeypatch, path, range(2, 9))

    assert_same(images[2:9], found)
    assert not any('"id" in' in query for query in queries)


@pytest.mark.parametrize(
    ("key", "settings", "key_type"),
    [
        pytest.param("id", "", "varchar", id="of texts"),
        pytest.param("id, other", "", "integer", id="of two columns"),
        pytest.param(
            "id", "set force_compression = 'zstd'", "integer", id="of compressed rows"
        ),
    ],
)
def test_rows_are_not_fetched_by_a_key(tmp_path, monkeypatch, key, settings, key_type):
    path, images = write_keyed(tmp_path, key, settings, key_type)

    found, queries = read_noting_queries(monkeypatch, path, [1, 17])

    assert_same([images[1], images[17]], found)
    assert not any('"id" in' in query for query in queries)


@pytest.fixture
def two_schemas(tmp_path):
    """Write a file with tables of the same name in two schemas, one with a key, and a view."""
    values = [ome_arrow_value(random_image((1, 1, 1, 3, 4), "uint16", 7))] * 2
    path = write(tmp_path, "duckdb", values, id=range(2))
    with pytest.importorskip("duckdb").connect(str(path)) as connection:
        connection.execute("""create schema "plate 'a'" """)
        connection.execute("""create table "plate 'a'".images as from images where id = 1""")
        connection.execute("""alter table "plate 'a'".images add primary key (id)""")
        connection.execute("""create view "plate 'a'".both as from main.images""")
    return path


@pytest.mark.parametrize(
    ("table", "ids"),
    [
        ("images", [0, 1]),
        ("main.images", [0, 1]),
        ("plate 'a'.images", [1]),
        ("plate 'a'.both", [0, 1]),
        ("both", [0, 1]),
    ],
)
def test_tables_are_found_in_each_schema(two_schemas, table, ids):
    source = open_source(two_schemas, table=table)

    assert source.read_column("id").tolist() == ids
    expected = [random_image((1, 1, 1, 3, 4), "uint16", 7)] * len(ids)
    assert_same(expected, read_images(source))
    assert_same(expected[:1], read_images(source, [0])[:1])


def test_tables_of_other_schemas_are_listed_with_these(two_schemas):
    with pytest.raises(SourceError, match=r"\"plate 'a'\.both\", \"plate 'a'\.images\""):
        open_source(two_schemas)


def test_a_query_may_end_in_a_comment(two_schemas):
    source = open_source(two_schemas, query="from images where id = 1 -- the second")

    assert source.read_column("id").tolist() == [1]


def test_a_table_with_a_key_and_no_rows_is_read(tmp_path):
    path, _ = write_keyed(tmp_path, "id")
    with pytest.importorskip("duckdb").connect(str(path)) as connection:
        connection.execute("delete from keyed")

    assert read_images(open_source(path), []) == []
