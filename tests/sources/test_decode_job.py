"""Images that children decode come to where they belong, by whatever writes there."""

import numcodecs
import numpy as np
import pytest
import zarr.codecs

from fastloader.shm import ArrayWriter
from fastloader.sources import OmeZarrFolder, TiffFolder
from fastloader.sources._decode_job import DecodeJob
from fastloader.sources._job_processes import JobProcesses
from fastloader.sources._jobs import run_job
from fastloader.sources._number_pipe import NumberPipe
from tests.image_files import (
    assert_images,
    random_pixels,
    read_all,
    write_ome_zarr,
    write_tiff,
)

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def eager(monkeypatch):
    """Let children start at once, and leave nothing to what is compiled."""
    monkeypatch.setattr("fastloader.sources._compiled_job.raw_reader", lambda: None)
    monkeypatch.setattr("fastloader.sources._jobs._WORTH_STARTING_SECONDS", -1)


class Notes:
    """Writes to an array and notes what it was called with."""

    def __init__(self, num_bytes):
        self.content = np.zeros(num_bytes, np.uint8)
        self.calls = []

    def __call__(self, offset_bytes, array):
        self.calls.append((offset_bytes, array.dtype, array.nbytes))
        target = self.content[offset_bytes : offset_bytes + array.nbytes]
        target[...] = array.reshape(-1).view(np.uint8)


def write_folder(folder, shapes, dtypes):
    pixels = [
        random_pixels(shape, dtype, seed)
        for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    for number, one in enumerate(pixels):
        write_tiff(folder / f"{number}.tif", one, compression="zlib")
    return [one[None, None, None] for one in pixels]


def test_images_of_several_types_and_sizes_keep_them(tmp_path, eager, no_leaks):
    shapes = [(5 + n % 4, 7) for n in range(60)]
    dtypes = [("uint8", "uint16", "float32")[n // 3 % 3] for n in range(60)]
    expected = write_folder(tmp_path, shapes, dtypes)

    images = read_all(TiffFolder(tmp_path), num_threads=3)

    assert_images(expected, images)


def test_a_writer_gets_arrays_of_the_images_type(tmp_path, eager):
    expected = write_folder(tmp_path, [(8, 6)] * 60, ["float32"] * 60)
    notes = Notes(60 * 192)
    offsets = np.arange(60) * 192

    TiffFolder(tmp_path).read_images(np.arange(60), offsets, notes, num_threads=3)

    assert {dtype for _, dtype, _ in notes.calls} == {np.dtype("float32")}
    np.testing.assert_array_equal(
        np.concatenate(expected).ravel(), notes.content.view("float32")
    )


def test_images_may_go_to_any_places(tmp_path, eager):
    expected = write_folder(tmp_path, [(8, 6)] * 60, ["uint16"] * 60)
    places = np.random.default_rng(0).permutation(60)
    notes = Notes(60 * 100)

    TiffFolder(tmp_path).read_images(np.arange(60), places * 100, notes, num_threads=3)

    found = notes.content.reshape(60, 100)[places, :96].copy().view("uint16")
    np.testing.assert_array_equal(np.concatenate(expected).reshape(60, 48), found)


def test_large_images_among_small_ones_are_decoded_by_threads(tmp_path, eager, monkeypatch):
    monkeypatch.setattr("fastloader.sources._decode_images._LARGE_IMAGE_BYTES", 1000)
    shapes = [(40, 30) if n % 7 == 0 else (8, 6) for n in range(60)]
    expected = write_folder(tmp_path, shapes, ["uint16"] * 60)
    counts = []

    images = read_all(TiffFolder(tmp_path), num_threads=3, on_rows=counts.append)

    assert_images(expected, images)
    assert sum(counts) == 60


@pytest.mark.parametrize(
    ("limits", "by_processes"),
    [
        ({}, True),
        ({"_LARGE_PIECE_BYTES": 30 * 8 * 2}, False),
        ({"_LARGEST_OF_CHILDREN_BYTES": 40 * 30 * 2}, False),
        ({"_CHILD_BYTES": 24 << 20}, False),
    ],
    ids=[
        "small strips",
        "large strips",
        "very large images",
        "little memory beside the pixels",
    ],
)
def test_large_images_of_small_strips_are_decoded_by_processes(
    tmp_path, eager, monkeypatch, limits, by_processes
):
    monkeypatch.setattr("fastloader.sources._decode_job.PART_BYTES", 1)
    names = {"_LARGE_IMAGE_BYTES": 1000, "_CHILD_BYTES": 0, "PART_BYTES": 1, **limits}
    for name, value in names.items():
        monkeypatch.setattr(f"fastloader.sources._decode_images.{name}", value)
    asked = []

    def note(job, take_result, **options):
        asked.append(options["in_processes"])
        run_job(job, take_result, **options)

    monkeypatch.setattr("fastloader.sources._decode_job.run_job", note)
    pixels = [random_pixels((40, 30), seed=seed) for seed in range(60)]
    for number, one in enumerate(pixels):
        write_tiff(tmp_path / f"{number}.tif", one, compression="zlib", rowsperstrip=8)

    images = read_all(TiffFolder(tmp_path), num_threads=3)

    assert_images([one[None, None, None] for one in pixels], images)
    assert asked == [by_processes]


@pytest.mark.parametrize(
    ("version", "codecs"),
    [
        ("0.4", {"filters": [numcodecs.Delta(dtype="u2")], "compressors": numcodecs.LZMA()}),
        ("0.4", {"compressors": numcodecs.Blosc()}),
        ("0.5", {"compressors": zarr.codecs.ZstdCodec()}),
    ],
    ids=["by zarr", "blosc", "zstd"],
)
def test_a_child_has_all_codecs_of_zarr(tmp_path, version, codecs):
    pixels = random_pixels((1, 8, 6))
    write_ome_zarr(tmp_path / "0.zarr", pixels, version=version, **codecs)
    out = np.zeros(pixels.nbytes, np.uint8)
    first = np.zeros(1, np.int64)
    job = DecodeJob(
        OmeZarrFolder(tmp_path),
        *(first, first, np.array([[1, 1, 1, 8, 6]]), first + pixels.nbytes),
        *(ArrayWriter(out), None, 1),
    )

    queue = NumberPipe.of([0]).end()
    with queue, JobProcesses(job, queue) as children:
        children.start(1)
        children.finish(lambda *_: None)

    np.testing.assert_array_equal(pixels.ravel(), out.view("uint16"))


def test_buffers_are_used_again_however_many_parts_there_are(tmp_path, eager, monkeypatch):
    monkeypatch.setattr("fastloader.sources._decode_job.PART_BYTES", 1)
    expected = write_folder(tmp_path, [(8, 6)] * 200, ["uint16"] * 200)

    images = read_all(TiffFolder(tmp_path), num_threads=2)

    assert_images(expected, images)


@pytest.mark.parametrize("large_bytes", [1, 1000], ids=["threads", "processes"])
def test_memory_of_this_process_is_filled(tmp_path, eager, monkeypatch, large_bytes):
    monkeypatch.setattr("fastloader.sources._decode_images._LARGE_IMAGE_BYTES", large_bytes)
    expected = write_folder(tmp_path, [(8, 6)] * 60, ["uint16"] * 60)
    block = np.zeros(60 * 96, np.uint8)

    TiffFolder(tmp_path).read_images(
        np.arange(60), np.arange(60) * 96, ArrayWriter(block), num_threads=3
    )

    np.testing.assert_array_equal(np.concatenate(expected).ravel(), block.view("uint16"))
