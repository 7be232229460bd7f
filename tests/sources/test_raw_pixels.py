"""Files read many at once in C give what Python reads from them, and its errors."""

import os
import pathlib

import numpy as np
import pytest

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.errors import ImageDataError, SourceError
from fastloader.shm import ArrayWriter, MemoryFile, MemoryWriter
from fastloader.sources import TiffFolder
from fastloader.sources._raw_pixels import raw_reader
from tests.image_files import random_pixels, write_tiff

SHAPES = [(5, 7), (1, 1), (64, 300), (700, 500)]
"""The last is larger than the buffer in which pixels are on their way to a file."""

each_way = pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "Python"])
each_target = pytest.mark.parametrize("kind", ["memory", "file"])


def write_folder(folder):
    """Write files of several sizes and types, among them some that need more than to be read."""
    pixels = []
    for number in range(40):
        dtype = ["uint8", "uint16", "float32"][number % 3]
        pixels.append(random_pixels(SHAPES[number % 4], dtype, seed=number))
        path = folder / f"folder {number % 2} é" / f"{number}.tif"
        options = {1: {"byteorder": ">"}, 2: {"compression": "zlib"}}.get(number % 5, {})
        write_tiff(path, pixels[-1], **options)
    return pixels


@pytest.fixture
def way(monkeypatch, is_compiled):
    """Read in C or not; notes how often C was called."""
    calls = []
    reader = raw_reader()
    if is_compiled and reader is None:
        pytest.skip("was not compiled")

    def read(*arguments):
        calls.append(arguments)
        return reader.read(*arguments)

    found = type("Reader", (), {"read": staticmethod(read)}) if is_compiled else None
    monkeypatch.setattr("fastloader.sources._decode_job.raw_reader", lambda: found)
    return calls


def read_flat(source, kind, num_threads=1, channels=None):
    """Return the bytes of all images, one after the other in memory with some room before."""
    table = source.read_table()
    shapes = table.shapes.copy()
    if channels is not None:
        shapes[:, 1] = len(channels)
    sizes = shapes.prod(axis=1) * table.item_sizes
    offsets = np.cumsum(sizes) - sizes
    progress = []
    options = {"num_threads": num_threads, "on_rows": progress.append, "channels": channels}
    if kind == "memory":
        block = np.zeros(sizes.sum() + 3, np.uint8)[3:]
        source.read_images(np.arange(len(sizes)), offsets, ArrayWriter(block), **options)
        content = block.tobytes()
    else:
        with MemoryFile.create(int(sizes.sum()) + 3) as file:
            writer = MemoryWriter(file, start_bytes=3)
            source.read_images(np.arange(len(sizes)), offsets, writer, **options)
            content = bytes(file.map())[3:]
    assert sum(progress) == len(sizes)
    return content


@each_way
@each_target
@pytest.mark.parametrize("num_threads", [1, 3])
def test_files_of_all_kinds_are_read(tmp_path, way, is_compiled, kind, num_threads):
    pixels = write_folder(tmp_path)
    source = TiffFolder(tmp_path)
    numbers = [int(name.removesuffix(".tif")) for name in source.read_column("file_name")]

    content = read_flat(source, kind, num_threads)

    assert content == b"".join(pixels[number].tobytes() for number in numbers)
    assert bool(way) == is_compiled


@each_way
def test_chosen_channels_are_read(tmp_path, way):
    pixels = random_pixels((3, 6, 5))
    write_tiff(tmp_path / "a.tif", pixels, axes="CYX")

    content = read_flat(TiffFolder(tmp_path), "memory", channels=[2, 0])

    assert content == pixels[[2, 0]].tobytes()


def remove(path):
    path.unlink()


def touch(path):
    os.utime(path, (1, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


@each_way
@each_target
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove, "is not there any more"),
        (touch, "was changed since"),
        (cut, "was changed since"),
    ],
)
def test_a_file_that_is_not_as_it_was_is_told(tmp_path, way, kind, change, message):
    write_folder(tmp_path)
    source = TiffFolder(tmp_path)
    change(tmp_path / "folder 1 é" / "23.tif")

    with pytest.raises(SourceError, match=rf"folder 1 é/23\.tif {message}"):
        read_flat(source, kind)


@each_way
def test_pixels_that_are_missing_are_told(tmp_path, way, monkeypatch):
    """A file that ends before its pixels, though it was as long when it was looked at."""
    write_tiff(tmp_path / "a.tif", random_pixels((40, 50)))
    source = TiffFolder(tmp_path)
    source._numbers[2] += 1

    with pytest.raises(ImageDataError, match=r"a\.tif: .* the file ends too early"):
        read_flat(source, "memory")


@pytest.mark.skipif(extension_module(RAW_FILES) is None, reason="was not compiled")
class TestCalls:
    """What the compiled function does with arguments that nobody should give it."""

    read_files = staticmethod(lambda *given: extension_module(RAW_FILES).read_files(*given))

    @pytest.mark.parametrize(
        ("paths", "places"),
        [
            (b"a\0", b""),
            (b"a", bytes(40)),
            (b"a\0b\0", bytes(40)),
            (b"a\0", bytes(41)),
            (b"", bytes(40)),
        ],
    )
    def test_numbers_that_do_not_agree_are_refused(self, paths, places):
        with pytest.raises(ValueError, match="five int64 for each path"):
            self.read_files(paths, places, -1)

    def test_no_files_are_none(self):
        assert self.read_files(b"", b"", -1) == 0

    def test_a_file_that_cannot_be_written_to_ends_it(self, tmp_path):
        path = tmp_path / "a"
        path.write_bytes(b"0123456789")
        state = path.stat()
        place = np.array([10, state.st_mtime_ns, 2, 5, 4], np.int64).tobytes()

        with (
            pathlib.Path(path).open("rb") as read_only,
            pathlib.Path(tmp_path / "b").open("wb+") as written,
        ):
            arguments = os.fsencode(path) + b"\0", place
            assert self.read_files(*arguments, read_only.fileno()) == 0
            assert self.read_files(*arguments, written.fileno()) == 1
            assert written.read() == b"\0\0\0\00023456"
