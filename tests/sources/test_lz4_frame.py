"""Parts of LZ4 frames are those of the whole, or are left to be read with all before them."""

import threading

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from fastloader import OMEArrowDataset
from fastloader.sources._kept_blocks import KeptBlocks
from fastloader.sources._lz4_frame import Lz4Frame
from fastloader.sources._stored_buffer import StoredBuffer
from tests.ome_arrow_tables import image_array, ome_arrow_value

BLOCK_BYTES = 64 << 10
INDEPENDENT = b"\x04\x22\x4d\x18\x60\x40\x82"


def noise(num_bytes, high=40, seed=1):
    return np.random.default_rng(seed).integers(0, high, num_bytes, np.uint8)


def packed(content):
    return np.frombuffer(pa.Codec("lz4").compress(content.tobytes(), asbytes=True), np.uint8)


def frame_of_blocks(blocks):
    """Return a frame of independent blocks that are stored as they are."""
    lengths = [(len(block) | 1 << 31).to_bytes(4, "little") for block in blocks]
    parts = [length + block.tobytes() for length, block in zip(lengths, blocks, strict=True)]
    return np.frombuffer(b"".join([INDEPENDENT, *parts, bytes(4)]), np.uint8)


@pytest.mark.parametrize("num_bytes", [2_000_000, 32 * BLOCK_BYTES])
@pytest.mark.parametrize("high", [12, 40, 256])
def test_parts_are_those_of_the_whole(num_bytes, high):
    content = noise(num_bytes, high)
    frame = Lz4Frame.find(packed(content), num_bytes)
    rng = np.random.default_rng(2)
    edges = [0, 1, BLOCK_BYTES, 10 * BLOCK_BYTES, num_bytes - 1, num_bytes]
    spans = [(start, stop) for start in edges for stop in edges if start < stop]
    spans += np.sort(rng.integers(0, num_bytes, (30, 2)), axis=1).tolist()

    assert frame is not None
    for start, stop in spans:
        part = frame.part(start, stop)
        if part is not None:
            np.testing.assert_array_equal(content[start:stop], part)
    found = [frame.part(start, stop) is not None for start, stop in spans]
    assert sum(found) >= 0.9 * len(spans)


def test_blocks_that_are_independent_need_nothing_before_them():
    content = noise(10 * BLOCK_BYTES + 5)
    blocks = np.split(content, range(BLOCK_BYTES, len(content), BLOCK_BYTES))

    frame = Lz4Frame.find(frame_of_blocks(blocks), len(content))

    assert frame is not None
    np.testing.assert_array_equal(content[300_000:500_001], frame.part(300_000, 500_001))
    np.testing.assert_array_equal(content[-7:], frame.part(len(content) - 7, len(content)))


def test_content_that_goes_back_to_the_first_block_is_left_to_be_read_from_there():
    content = np.tile(noise(30_000), 60)

    assert Lz4Frame.find(packed(content), len(content)) is None


def test_a_part_that_goes_back_to_the_first_block_is_none_and_others_are_right():
    same = np.tile(noise(30_000), 40)
    content = np.concatenate([noise(2_000_000), same])
    frame = Lz4Frame.find(packed(content), len(content))

    assert frame is not None
    assert frame.part(len(content) - 100, len(content)) is None
    np.testing.assert_array_equal(
        content[1_000_000:1_000_100], frame.part(1_000_000, 1_000_100)
    )


@pytest.mark.parametrize("short", [0, 3, 9])
def test_blocks_that_are_not_full_are_not_taken_for_full_ones(short):
    sizes = [BLOCK_BYTES] * 10
    sizes[short] -= 100
    blocks = [noise(size, seed=at) for at, size in enumerate(sizes)]

    frame = Lz4Frame.find(frame_of_blocks(blocks), sum(sizes))

    assert (frame is not None) == (short == 9)  # the last may be shorter


@pytest.mark.parametrize("num_bytes", [-5, 0, 4, 1 << 60, 10 * BLOCK_BYTES - 1])
def test_another_length_than_that_of_the_blocks_is_none(num_bytes):
    content = noise(10 * BLOCK_BYTES)

    assert Lz4Frame.find(packed(content), num_bytes) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda frame: frame[:-1],
        lambda frame: frame[: len(frame) // 2],
        lambda frame: frame[:5],
        lambda frame: np.append(frame, np.uint8(0)),
        lambda frame: np.append(np.uint8(0), frame[1:]),
    ],
    ids=["end", "half", "header", "more", "magic"],
)
def test_a_frame_that_is_cut_off_or_none_is_none(damage):
    content = noise(10 * BLOCK_BYTES)

    assert Lz4Frame.find(damage(packed(content)), len(content)) is None


def test_a_block_that_became_shorter_is_none():
    """Its first byte says how many bytes are there before the first that are repeated."""
    content = noise(20 * BLOCK_BYTES, high=12)
    stored = packed(content).copy()
    frame = Lz4Frame.find(stored, len(content))
    block = int(frame._edges[15])
    found = set()

    for at in range(block + 4, block + 40):
        before = stored[at]
        stored[at] ^= 0xFF
        part = frame.part(15 * BLOCK_BYTES, 16 * BLOCK_BYTES)
        found.add(part is None)
        assert part is None or len(part) == BLOCK_BYTES
        stored[at] = before

    assert True in found
    np.testing.assert_array_equal(
        content[15 * BLOCK_BYTES : 16 * BLOCK_BYTES],
        frame.part(15 * BLOCK_BYTES, 16 * BLOCK_BYTES),
    )


@pytest.fixture(params=["list", "bytes"])
def large_table(request, tmp_path):
    """A file of which little is kept, and its images."""
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 900, (1, 2, 1, 200, 300), np.uint16) for _ in range(24)]
    images[13:15] = [np.zeros((1, 2, 1, 200, 300), np.uint16)] * 2
    values = [ome_arrow_value(one, encoding=request.param) for one in images]
    table = pa.table({"image": image_array(values, encoding=request.param)})
    path = tmp_path / "a.feather"
    options = ipc.IpcWriteOptions(compression="lz4")
    with ipc.new_file(path, table.schema, options=options) as file:
        file.write_table(table, max_chunksize=12)
    return path, images


def open_rows(path, **options):
    return OMEArrowDataset(
        path, preload=False, cache="none", dtype=None, progress=False, **options
    )


@pytest.fixture
def keeps_little(monkeypatch):
    monkeypatch.setattr(KeptBlocks, "max_bytes", 1 << 20)


def as_sample(image):
    return image[0, :, 0]


@pytest.mark.usefixtures("keeps_little")
def test_rows_of_a_large_file_are_read_without_those_before_them(large_table, monkeypatch):
    path, images = large_table
    dataset = open_rows(path)
    decompressed = []
    first = StoredBuffer.first
    monkeypatch.setattr(
        StoredBuffer,
        "first",
        lambda buffer, num_bytes: decompressed.append(num_bytes) or first(buffer, num_bytes),
    )

    for row in [9, 3, 22, 11, 3, 8]:
        np.testing.assert_array_equal(as_sample(images[row]), dataset[row].numpy())
    assert decompressed == []
    np.testing.assert_array_equal(as_sample(images[14]), dataset[14].numpy())


@pytest.mark.usefixtures("keeps_little")
@pytest.mark.parametrize("channels", [None, [1], [1, 0]])
def test_batches_of_rows_of_a_large_file_are_right(large_table, channels):
    path, images = large_table
    dataset = open_rows(path, channels=channels)
    rng = np.random.default_rng(4)

    for _ in range(20):
        rows = rng.integers(-24, 24, rng.integers(1, 9)).tolist()
        expected = np.stack([as_sample(images[row]) for row in rows])
        if channels is not None:
            expected = expected[:, channels]
        np.testing.assert_array_equal(expected, dataset.get_batch(rows).numpy())


@pytest.mark.usefixtures("keeps_little")
def test_threads_read_parts_at_once(large_table):
    path, images = large_table
    dataset = open_rows(path)
    wrong = []

    def read(seed):
        order = np.random.default_rng(seed).permutation(24).tolist()
        found = [np.array_equal(as_sample(images[row]), dataset[row].numpy()) for row in order]
        wrong.extend(row for row, is_right in zip(order, found, strict=True) if not is_right)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.usefixtures("keeps_little")
def test_all_rows_of_a_large_file_are_read_whole(large_table, monkeypatch):
    path, images = large_table
    monkeypatch.setattr(
        StoredBuffer, "find_frame", lambda buffer: pytest.fail("a part is read")
    )
    dataset = OMEArrowDataset(path, dtype=None, progress=False)

    np.testing.assert_array_equal(as_sample(images[20]), dataset[20].numpy())


def test_a_small_file_is_kept_decompressed(large_table, monkeypatch):
    path, images = large_table
    monkeypatch.setattr(
        StoredBuffer, "find_frame", lambda buffer: pytest.fail("a part is read")
    )
    dataset = open_rows(path)

    np.testing.assert_array_equal(as_sample(images[20]), dataset[20].numpy())
