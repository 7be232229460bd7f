"""Buffers that are decompressed straight to where they stay are those that Arrow gives."""

import numpy as np
import pyarrow as pa
import pytest

from fastloader import OMEArrowDataset
from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.errors import SourceError
from fastloader.shm import ArrayWriter
from fastloader.sources import _stored_buffer, open_source
from fastloader.sources._codec_addresses import address_in_numcodecs
from fastloader.sources._straight_codecs import straight_codec
from tests.ome_arrow_tables import image_array, ome_arrow_value
from tests.sources.test_lz4_frame import BLOCK_BYTES, frame_of_blocks, noise

pytest.importorskip("numcodecs")

needs_blocks = pytest.mark.skipif(
    not hasattr(extension_module(RAW_FILES), "decompress_blocks"), reason="was not compiled"
)
codecs = pytest.mark.parametrize("codec", [pytest.param("lz4", marks=needs_blocks), "zstd"])


def compressed(codec, content):
    return np.frombuffer(pa.Codec(codec).compress(content.tobytes(), asbytes=True), np.uint8)


def write_feather(path, images, compression, batch_rows=3, encoding="bytes"):
    values = [ome_arrow_value(image, encoding=encoding) for image in images]
    table = pa.table({"image": image_array(values, encoding=encoding)})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=batch_rows)
    return path


def images_of(num_images, side=64):
    rng = np.random.default_rng(4)
    return rng.integers(0, 3000, (num_images, 1, 2, 1, side, side)).astype(np.uint16)


@codecs
@pytest.mark.parametrize("num_bytes", [0, 1, BLOCK_BYTES, 9 * BLOCK_BYTES, 1_000_003])
@pytest.mark.parametrize("high", [1, 12, 256])
def test_a_buffer_is_what_was_compressed(codec, num_bytes, high):
    content = noise(num_bytes, high)
    around = np.full(num_bytes + 2, 255, np.uint8)

    assert straight_codec(codec)(compressed(codec, content), around[1:-1])

    np.testing.assert_array_equal(content, around[1:-1])
    assert around[0] == around[-1] == 255


@needs_blocks
def test_blocks_that_are_independent_or_stored_as_they_are_are_read():
    content = noise(3 * BLOCK_BYTES + 5)
    blocks = np.split(content, range(BLOCK_BYTES, len(content), BLOCK_BYTES))
    target = np.zeros_like(content)

    assert straight_codec("lz4")(frame_of_blocks(blocks), target)
    np.testing.assert_array_equal(content, target)
    assert not straight_codec("lz4")(frame_of_blocks([*blocks[:2], *blocks[3:]]), target)


@codecs
@pytest.mark.parametrize("by", [-1, 1])
def test_a_buffer_of_another_length_is_left_to_arrow(codec, by):
    content = noise(3 * BLOCK_BYTES + 7, high=12)
    target = np.zeros(len(content) + by, np.uint8)

    assert not straight_codec(codec)(compressed(codec, content), target)


@codecs
def test_damage_is_told_and_nothing_is_written_elsewhere(codec):
    content = noise(4 * BLOCK_BYTES, high=12)
    stored = compressed(codec, content).copy()
    rng = np.random.default_rng(6)
    around = np.full(len(content) + 2 * BLOCK_BYTES, 255, np.uint8)
    target = around[BLOCK_BYTES:-BLOCK_BYTES]
    refused = 0

    for at in rng.integers(0, len(stored), 300):
        stored[at] ^= 1 << at % 8
        refused += not straight_codec(codec)(stored, target)
        refused += not straight_codec(codec)(stored[: len(stored) - at], target)
        stored[at] ^= 1 << at % 8

    assert refused >= 300
    assert (around[:BLOCK_BYTES] == 255).all()
    assert (around[-BLOCK_BYTES:] == 255).all()


@needs_blocks
@pytest.mark.parametrize(
    "edges", [[0, 9, 8], [-1, 12], [0, 4], [0, 1 << 40], [0, 12, 24, 36], [7], []]
)
def test_blocks_that_lie_elsewhere_are_refused(edges):
    blocks = extension_module(RAW_FILES).decompress_blocks
    address = address_in_numcodecs("lz4", "LZ4_decompress_safe_usingDict")
    stored = b"".join([(8 | 1 << 31).to_bytes(4, "little"), bytes(8)] * 2)
    target = bytearray(16)

    assert blocks(stored, np.array([0, 12, 24], np.int64), 8, target, address)
    assert not blocks(stored, np.array(edges, np.int64), 8, target, address)
    for num_bytes in (0, -8, 7, 9):
        assert not blocks(stored, np.array([0, 12, 24], np.int64), num_bytes, target, address)


def test_there_is_none_for_codecs_that_arrow_alone_knows():
    assert straight_codec("gzip") is None


@codecs
@pytest.mark.parametrize("encoding", ["bytes", "list"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_record_batches_are_decompressed_to_where_they_stay(
    tmp_path, monkeypatch, codec, encoding, num_threads
):
    images = images_of(10, side=512)  # enough for threads
    path = write_feather(tmp_path / "images.arrow", images, codec, encoding=encoding)

    def copy(*_):
        raise AssertionError("memory was taken for a copy")

    monkeypatch.setattr(_stored_buffer, "decompress_first", copy)
    source = open_source(path)
    block = np.zeros(images.nbytes, np.uint8)
    offsets = np.arange(len(images)) * images[0].nbytes
    rows_done = []

    source.read_images(
        np.arange(len(images)),
        offsets,
        ArrayWriter(block),
        on_rows=rows_done.append,
        num_threads=num_threads,
    )

    np.testing.assert_array_equal(images.ravel(), block.view(np.uint16))
    assert sum(rows_done) == len(images)


@codecs
def test_some_channels_in_another_order_come_as_they_are(tmp_path, codec):
    images = images_of(7)
    path = write_feather(tmp_path / "images.arrow", images, codec)

    dataset = OMEArrowDataset(path, dtype=None, channels=[1, 0], progress=False)

    np.testing.assert_array_equal(images[:, 0, ::-1, 0], dataset.get_batch(range(7)).numpy())


@codecs
def test_without_numcodecs_images_are_the_same(tmp_path, monkeypatch, codec):
    images = images_of(7)
    path = write_feather(tmp_path / "images.arrow", images, codec)
    monkeypatch.setattr(_stored_buffer, "straight_codec", lambda _: None)

    dataset = OMEArrowDataset(path, dtype=None, progress=False)

    np.testing.assert_array_equal(images[:, 0, :, 0], dataset.get_batch(range(7)).numpy())


@codecs
@pytest.mark.parametrize("num_threads", [1, 2])
def test_damage_in_a_file_is_an_error_that_names_it(tmp_path, codec, num_threads):
    images = images_of(10, side=512)
    path = write_feather(tmp_path / "images.arrow", images, codec)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)
    source = open_source(path)
    offsets = np.arange(len(images)) * images[0].nbytes
    write = ArrayWriter(np.zeros(images.nbytes, np.uint8))

    with pytest.raises(SourceError, match=r"images\.arrow"):
        source.read_images(np.arange(len(images)), offsets, write, num_threads=num_threads)
