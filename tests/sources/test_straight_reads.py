"""What is read straight to memory is what was compressed, and damage is told."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastloader import OMEArrowDataset
from fastloader.errors import ImageDataError, SourceError
from fastloader.sources import _parquet_pages, _straight_reads
from fastloader.sources._page_memory import PageMemory
from fastloader.sources._straight_reads import STRAIGHT_READS, decompress_lz4_block
from tests.ome_arrow_tables import image_array, ome_arrow_value
from tests.sources.test_lz4_frame import noise

pytest.importorskip("numcodecs")

codecs = pytest.mark.parametrize("codec", STRAIGHT_READS)
ARROW_CODECS = {"lz4": "lz4_raw"}
GUARD_BYTES = 4096


def compressed(codec, content):
    if codec == "uncompressed":
        return content
    codec = pa.Codec(ARROW_CODECS.get(codec, codec))
    return np.frombuffer(codec.compress(content.tobytes(), asbytes=True), np.uint8)


def reader_of(stored, most=1000):
    left = memoryview(stored.tobytes())

    def read(piece):
        nonlocal left
        count = min(len(piece), len(left), most)
        piece[:count] = left[:count]
        left = left[count:]
        return count

    return read


def read_all(codec, stored, num_bytes, most=1 << 30, num_stored=None):
    """Read into memory between guards, which stay as they are."""
    taken = []

    def take(num_taken):
        taken.append(np.full(num_taken + 2 * GUARD_BYTES, 255, np.uint8))
        return taken[-1][GUARD_BYTES:-GUARD_BYTES]

    read = reader_of(stored, most)
    num_stored = len(stored) if num_stored is None else num_stored
    content = STRAIGHT_READS[codec](read, num_stored, num_bytes, take)
    assert len(taken) <= 1
    for one in taken:
        assert (one[:GUARD_BYTES] == 255).all()
        assert (one[-GUARD_BYTES:] == 255).all()
    return content


@codecs
@pytest.mark.parametrize("num_bytes", [1, 100, 30_000, 700_001])
@pytest.mark.parametrize("high", [1, 12, 256])
def test_what_is_read_is_what_was_compressed(codec, num_bytes, high):
    content = noise(num_bytes, high)

    np.testing.assert_array_equal(
        content, read_all(codec, compressed(codec, content), num_bytes)
    )


@pytest.mark.parametrize("run", range(0, 300, 7))
def test_lz4_within_the_memory_that_it_is_decompressed_to_is_never_overtaken(run):
    """Ends that do not compress come the nearest: each is as long in the file as in memory."""
    rng = np.random.default_rng(run)
    ends = rng.integers(0, 256, 255 * 40 + run, np.uint8)
    content = np.concatenate([np.zeros(100_000 + run, np.uint8), ends])

    np.testing.assert_array_equal(
        content, read_all("lz4", compressed("lz4", content), len(content))
    )


@pytest.mark.parametrize("most", [1, 1000, 1 << 20])
@pytest.mark.parametrize("num_bytes", [1, 30_000, 700_001])
def test_zstd_is_read_bit_by_bit(num_bytes, most):
    content = noise(min(num_bytes, 40 * most), high=12)
    stored = compressed("zstd", content)

    np.testing.assert_array_equal(content, read_all("zstd", stored, len(content), most))


DAMAGES = {
    "end": lambda stored: stored[:-1],
    "part": lambda stored: stored[:2000],
    "more": lambda stored: np.append(stored, np.uint8(0)),
    "twice": lambda stored: np.concatenate([stored, stored]),
}


@codecs
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_cut_off_or_longer_is_told(codec, damage):
    content = noise(300_000, high=12)

    assert read_all(codec, damage(compressed(codec, content)), len(content)) is None


@codecs
@pytest.mark.parametrize("by", [-1, 1])
def test_another_length_is_told(codec, by):
    content = noise(300_000, high=12)

    assert read_all(codec, compressed(codec, content), len(content) + by) is None


@codecs
def test_a_file_that_ends_too_soon_is_told(codec):
    content = noise(300_000, high=12)
    stored = compressed(codec, content)

    assert read_all(codec, stored[:5000], len(content), num_stored=len(stored)) is None


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_damage_writes_nowhere_else(codec):
    content = noise(100_000, high=12)
    stored = compressed(codec, content).copy()
    rng = np.random.default_rng(6)
    refused = 0

    for at in rng.integers(0, len(stored), 300):
        stored[at] ^= 1 << at % 8
        refused += read_all(codec, stored, len(content)) is None
        refused += read_all(codec, stored[: len(stored) - at], len(content)) is None
        stored[at] ^= 1 << at % 8

    assert refused >= 300


def test_a_block_of_lz4_is_decompressed_to_memory_of_its_length_alone():
    content = noise(50_000, high=12)
    stored = compressed("lz4", content)
    target = np.empty_like(content)

    assert decompress_lz4_block(stored, target)

    np.testing.assert_array_equal(content, target)
    assert not decompress_lz4_block(stored, np.empty(len(content) + 1, np.uint8))
    assert not decompress_lz4_block(stored, np.empty(len(content) - 1, np.uint8))


def write_large_pages(path, images, codec="zstd", **options):
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    table = pa.table({"image": image_array(values, encoding="bytes")})
    codec = {"uncompressed": "none"}.get(codec, codec)
    pq.write_table(table, path, row_group_size=3, compression=codec, **options)
    return path


def large_images(num_images):
    rng = np.random.default_rng(4)
    return rng.integers(0, 3000, (num_images, 1, 2, 1, 512, 512)).astype(np.uint16)


@pytest.fixture
def straight_reads(monkeypatch):
    """What was read of large pages, in order."""
    found = []

    def noted(read):
        def read_and_note(*arguments):
            found.append(read(*arguments))
            return found[-1]

        return read_and_note

    noting = {codec: noted(read) for codec, read in STRAIGHT_READS.items()}
    monkeypatch.setattr(_parquet_pages, "STRAIGHT_READS", noting)
    monkeypatch.setattr(_parquet_pages, "_LARGE_BYTES", 1 << 20)
    return found


@codecs
@pytest.mark.parametrize("has_checksums", [False, True])
def test_large_pages_of_parquet_are_read_straight(
    tmp_path, straight_reads, codec, has_checksums
):
    images = large_images(7)
    path = tmp_path / "images.parquet"
    write_large_pages(path, images, codec, write_page_checksum=has_checksums)

    dataset = OMEArrowDataset(path, dtype=None, progress=False)

    np.testing.assert_array_equal(images[:, 0, :, 0], dataset.get_batch(range(7)).numpy())
    assert len(straight_reads) >= 3
    assert all(one is not None for one in straight_reads)


@codecs
def test_large_pages_whose_checksum_does_not_fit_are_read_by_arrow_which_tells(
    tmp_path, straight_reads, codec
):
    path = tmp_path / "images.parquet"
    write_large_pages(path, large_images(3), codec, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)

    with pytest.raises((SourceError, ImageDataError), match=r"images\.parquet"):
        OMEArrowDataset(path, dtype=None, progress=False)
    assert straight_reads


def test_all_is_read_without_the_codecs_modules(tmp_path, monkeypatch):
    images = large_images(4)
    monkeypatch.setattr(_straight_reads, "address_in_numcodecs", lambda *_: 0)
    clear = (_straight_reads._lz4_block.cache_clear, _straight_reads._zstd_stream.cache_clear)

    try:
        for forget in clear:
            forget()
        for codec in STRAIGHT_READS:
            path = write_large_pages(tmp_path / f"{codec}.parquet", images, codec)
            dataset = OMEArrowDataset(path, dtype=None, progress=False)
            np.testing.assert_array_equal(
                images[:, 0, :, 0], dataset.get_batch(range(4)).numpy()
            )
    finally:
        for forget in clear:
            forget()


def test_memory_of_a_large_page_is_used_again_up_to_a_limit():
    memory = PageMemory()
    large = memory.large(2 << 20)

    assert np.shares_memory(large, memory.large(1 << 20))
    assert len(memory.large(40 << 20)) == 40 << 20
    assert np.shares_memory(large, memory.large(2 << 20))
