"""What was decoded last is found again, within a number of bytes, and only for the same file."""

import gc
import os
import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from fastloader.sources import _batch_rows, _duckdb, _stored_buffer, open_source
from fastloader.sources._kept_blocks import KeptBlocks
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images
from tests.sources.test_formats import formats, write

keeping_formats = pytest.mark.parametrize("kind", formats(["feather", "duckdb"]))
encodings = pytest.mark.parametrize("encoding", ["list", "bytes"])
NUM_ROWS = 30


@pytest.fixture(autouse=True)
def nothing_kept():
    KeptBlocks.forget_all()


def write_many(folder, kind, encoding="list", seed=0):
    images = [random_image((1, 2, 1, 40, 50), seed=seed + row) for row in range(NUM_ROWS)]
    values = [ome_arrow_value(image, encoding=encoding) for image in images]
    return write(folder, kind, values, encoding=encoding), images


def read_one(source, row):
    return read_images(source, [row])[row]


def test_the_blocks_used_longest_ago_are_let_go_of_first(monkeypatch):
    monkeypatch.setattr(KeptBlocks, "max_bytes", 10)
    monkeypatch.setattr(KeptBlocks, "block_bytes", 0)
    one, other = KeptBlocks(), KeptBlocks()

    one.put(1, "one", 4)
    one.put(2, "two", 4)
    assert one.get(1) == "one"
    other.put(1, "three", 4)

    assert one.get(2) is None
    assert one.get(1) == "one"
    assert other.get(1) == "three"
    assert KeptBlocks.kept_bytes() == 8
    one.put(1, "another", 3)
    assert KeptBlocks.kept_bytes() == 7
    one.put(3, "too large", 11)
    assert one.get(3) is None
    assert KeptBlocks.kept_bytes() == 7


def test_blocks_go_with_their_file(monkeypatch):
    monkeypatch.setattr(KeptBlocks, "block_bytes", 0)
    one, other = KeptBlocks(), KeptBlocks()
    one.put(1, "one", 4)
    other.put(1, "two", 5)

    one.clear()
    assert one.get(1) is None
    assert KeptBlocks.kept_bytes() == 5

    del other
    assert KeptBlocks.kept_bytes() == 0
    one.put(1, "three", 6)
    assert KeptBlocks.kept_bytes() == 6
    assert pickle.loads(pickle.dumps(one)).get(1) is None


def test_what_is_counted_is_what_is_kept(monkeypatch):
    monkeypatch.setattr(KeptBlocks, "max_bytes", 60)
    monkeypatch.setattr(KeptBlocks, "block_bytes", 1)
    rng = np.random.default_rng(0)
    files = [KeptBlocks() for _ in range(4)]

    for number in rng.integers(0, 4, 2000).tolist():
        files[number].put(int(rng.integers(0, 9)), "block", int(rng.integers(0, 70)))
        if rng.random() < 0.05:
            files[number].clear()
        if rng.random() < 0.05:
            files[number] = KeptBlocks()
        if not KeptBlocks._has_gone:  # what has gone is taken off with the next
            assert KeptBlocks._used_bytes == KeptBlocks.kept_bytes() <= 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork")
def test_a_forked_child_keeps_nothing_of_its_parents():
    kept = KeptBlocks()
    kept.put(1, "one", 4)

    child = os.fork()
    if not child:
        os._exit(0 if kept.get(1) is None and KeptBlocks.kept_bytes() == 0 else 1)

    assert os.waitpid(child, 0)[1] == 0
    assert kept.get(1) == "one"


@keeping_formats
@encodings
def test_rows_in_any_order_and_again_are_those_of_the_file(
    tmp_path, kind, encoding, monkeypatch
):
    monkeypatch.setattr(_duckdb, "_KEPT_BATCHES", 0)  # only those that follow on each other
    path, images = write_many(tmp_path, kind, encoding)
    source = open_source(path)
    rng = np.random.default_rng(1)

    for _ in range(20):
        rows = np.sort(rng.choice(NUM_ROWS, rng.integers(1, 8), replace=False))
        found = read_images(source, rows)
        assert_same([images[row] for row in rows], [found[row] for row in rows])
        assert 0 <= KeptBlocks.kept_bytes() <= KeptBlocks.max_bytes
    assert_same(images, read_images(source))
    assert_same(images, read_images(pickle.loads(pickle.dumps(source))))


@encodings
def test_a_record_batch_is_decompressed_once_for_rows_that_follow(
    tmp_path, encoding, monkeypatch
):
    monkeypatch.setattr(_stored_buffer, "_SMALL_BYTES", 0)
    path, images = write_many(tmp_path, "feather", encoding)
    source = open_source(path)
    decompressed = []
    decompress = _stored_buffer.StoredBuffer._decompress

    def noting(buffer, num_bytes):
        decompressed.append((id(buffer), num_bytes - buffer._num_known))
        decompress(buffer, num_bytes)

    monkeypatch.setattr(_stored_buffer.StoredBuffer, "_decompress", noting)

    for row in [*range(NUM_ROWS), *range(NUM_ROWS)]:
        np.testing.assert_array_equal(images[row], read_one(source, row))

    assert sum(num_bytes for _, num_bytes in decompressed) == sum(one.nbytes for one in images)
    source.close()
    assert KeptBlocks.kept_bytes() == 0
    np.testing.assert_array_equal(images[3], read_one(source, 3))


@pytest.fixture
def queries(monkeypatch):
    asked = []
    batches = _duckdb.DuckDBTable._batches

    def noting(table, query, batch_rows):
        asked.append(query.rpartition(" where rowid ")[2].split()[0])
        return batches(table, query, batch_rows)

    monkeypatch.setattr(_duckdb.DuckDBTable, "_batches", noting)
    return asked


def read_each(source, images, rows):
    for row in rows:
        np.testing.assert_array_equal(images[row], read_one(source, row))


def test_duckdb_is_asked_twice_for_rows_of_a_small_table(tmp_path, queries):
    path, images = write_many(tmp_path, "duckdb")
    source = open_source(path)
    source.read_table()
    queries.clear()

    read_each(source, images, (3, 20, 7, 20, 3, 29))

    assert queries == ["in", "between"]  # for one row, and for all that are near
    source.close()
    assert KeptBlocks.kept_bytes() == 0


def test_of_a_large_table_only_rows_that_follow_are_read_ahead(tmp_path, queries, monkeypatch):
    monkeypatch.setattr(_duckdb, "_KEPT_BATCHES", 0)
    monkeypatch.setattr(_batch_rows, "_MIN_READ_BYTES", 16_000)  # 2 images, so 8 in a block
    monkeypatch.setattr(_batch_rows, "_MAX_READ_BYTES", 16_000)
    path, images = write_many(tmp_path, "duckdb")
    source = open_source(path)
    source.read_table()
    queries.clear()

    read_each(source, images, (3, 20, 7, 25, 3, 29))
    assert queries == ["in"] * 6
    queries.clear()
    read_each(source, images, range(NUM_ROWS))
    assert queries == ["in"] + ["between"] * 4


@keeping_formats
def test_another_file_of_the_same_name_is_read_anew(tmp_path, kind):
    path, images = write_many(tmp_path, kind)
    source = open_source(path)
    for row in (3, 5, 3):
        np.testing.assert_array_equal(images[row], read_one(source, row))
    source.close()
    del source

    path, images = write_many(tmp_path, kind, seed=100)

    source = open_source(path)
    for row in (3, 5, 3):
        np.testing.assert_array_equal(images[row], read_one(source, row))


@keeping_formats
def test_nothing_is_kept_of_a_table_that_nobody_has(tmp_path, kind):
    path, _ = write_many(tmp_path, kind)
    gc.disable()
    try:
        source = open_source(path)
        for row in (3, 5, 3):
            read_one(source, row)
        assert KeptBlocks.kept_bytes() > 0

        del source

        assert KeptBlocks.kept_bytes() == 0
    finally:
        gc.enable()


def test_many_rows_at_once_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(KeptBlocks, "max_bytes", 1000)
    images = [random_image((1, 1, 1, 40, 50), seed=row) for row in range(9)]
    table = pa.table({"image": image_array([ome_arrow_value(image) for image in images])})
    path = tmp_path / "a.feather"
    with ipc.new_file(
        path, table.schema, options=ipc.IpcWriteOptions(compression="lz4")
    ) as file:
        file.write_table(table, max_chunksize=2)
    source = open_source(path)

    found = read_images(source, [1, 3, 5])

    assert_same([images[row] for row in (1, 3, 5)], [found[row] for row in (1, 3, 5)])
    assert KeptBlocks.kept_bytes() == 0
