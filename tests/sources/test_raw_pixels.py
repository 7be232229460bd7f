"""Files read many at once in C give what Python reads from them, and its errors."""

import os
import pathlib
import zlib

import numpy as np
import pytest
import tifffile

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.errors import ImageDataError, SourceError
from fastloader.shm import MemoryFile, MemoryWriter
from fastloader.sources import TiffFolder
from fastloader.sources._raw_pixels import raw_reader
from tests.image_files import random_pixels, write_tiff
from tests.sources.compiled import each_target, each_way, read_flat

SHAPES = [(5, 7), (1, 1), (64, 300), (700, 500)]
"""The last is larger than the buffer in which pixels are on their way to a file."""


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


SEGMENTS = {
    "strips": {"compression": "zlib", "rowsperstrip": 7},
    "one strip": {"compression": "zlib"},
    "differences": {"compression": "zlib", "predictor": True, "rowsperstrip": 5},
    "tiles": {"compression": "zlib", "predictor": True, "tile": (16, 32)},
    "tiles as they are": {"tile": (32, 16)},
    "other byte order": {"compression": "zlib", "predictor": True, "byteorder": ">"},
    "other byte order, as it is": {"byteorder": ">"},
    "other byte order, tiles": {"byteorder": ">", "tile": (16, 16)},
    "BigTIFF": {"bigtiff": True, "compression": "zlib"},
}
DTYPES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int64",
    "float16",
    "float32",
    "float64",
]


@pytest.fixture(scope="module", params=SEGMENTS.values(), ids=SEGMENTS)
def segmented(request, tmp_path_factory):
    """A folder of files of every type, as one and several pages, samples side by side and in planes."""
    folder, options = tmp_path_factory.mktemp("segmented"), request.param
    pixels = []
    for number, dtype in enumerate(DTYPES):
        has_predictor = dtype not in {"int64", "float16", "float32", "float64"}
        predictor = {} if has_predictor else {"predictor": False}
        for form, (shape, axes, more) in enumerate([
            ((37, 50), "YX", {}),
            ((3, 33, 20), "CYX", {}),
            ((2, 21, 40, 3), "TYXS", {"photometric": "rgb", "planarconfig": "contig"}),
            ((2, 3, 19, 40), "TSYX", {"photometric": "rgb", "planarconfig": "separate"}),
        ]):
            if form > 1 and dtype not in {"uint8", "uint16"}:
                continue
            image = random_pixels(shape, dtype, seed=number)
            path = folder / f"{len(pixels)}.tif"
            write_tiff(path, image, axes=axes, **{**options, **more, **predictor})
            pixels.append(tifffile.imread(path))
            np.testing.assert_array_equal(pixels[-1], image)
    return folder, pixels


@each_way
@each_target
def test_strips_and_tiles_are_read(segmented, way, is_compiled, kind):
    folder, pixels = segmented
    interleaved = [np.moveaxis(one, -1, 1) if one.shape[-1] == 3 else one for one in pixels]

    content = read_flat(TiffFolder(folder), kind)

    assert content == b"".join(np.ascontiguousarray(one).tobytes() for one in interleaved)
    assert bool(way) == is_compiled
    in_order = sum(pixel.shape[-1] != 3 for pixel in pixels)
    read = sum(num_read for name, num_read in way)
    assert not is_compiled or read >= in_order - len(DTYPES) // 3


@each_way
@each_target
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_damaged_strip_is_told(tmp_path, way, kind, place):
    """Also between other images, which are read all the same."""
    for number in range(3):
        write_tiff(tmp_path / f"{number}.tif", random_pixels((64, 40)), compression="zlib")
    with tifffile.TiffFile(tmp_path / "1.tif") as file:
        start, count = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    content = bytearray((tmp_path / "1.tif").read_bytes())
    content[
        {"first": start, "middle": start + count // 2, "last": start + count - 1}[place]
    ] ^= 1
    (tmp_path / "1.tif").write_bytes(content)

    with pytest.raises(ImageDataError, match=r"1\.tif: its pixels cannot be decoded"):
        read_flat(TiffFolder(tmp_path), kind)


class FleetingWriter(MemoryWriter):
    """Maps its file anew for each view, as two threads do that ask first at the same time."""

    def view(self, *arguments):
        return MemoryWriter(self.file).view(*arguments)


@each_way
def test_memory_is_there_for_as_long_as_it_is_written_to(tmp_path, way):
    pixels = random_pixels((40, 50))
    write_tiff(tmp_path / "a.tif", pixels, compression="zlib")
    first = np.zeros(1, np.int64)

    with MemoryFile.create(pixels.nbytes) as file:
        TiffFolder(tmp_path).read_images(first, first, FleetingWriter(file))

        assert bytes(file.map()) == pixels.tobytes()


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


class UnmappedWriter(MemoryWriter):
    def view(self, *_):
        raise AssertionError("writing there may end the process")


@each_way
@pytest.mark.parametrize("damage", [None, cut], ids=["whole", "damaged"])
def test_a_file_that_may_find_its_disk_full_is_not_written_through_a_mapping(
    tmp_path, way, damage
):
    pixels = random_pixels((40, 50))
    write_tiff(tmp_path / "a.tif", pixels, compression="zlib")  # larger than a share of all
    source = TiffFolder(tmp_path)
    with MemoryFile.create(pixels.nbytes) as file:
        writer = UnmappedWriter(file, has_room=False)
        if damage is not None:
            damage(tmp_path / "a.tif")
            with pytest.raises(SourceError, match="changed"):
                source.read_images(np.arange(1), np.zeros(1, np.int64), writer)
            return

        source.read_images(np.arange(1), np.zeros(1, np.int64), writer)

        assert bytes(file.map()) == pixels.tobytes()


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


def zlib_streams(rng):
    """Yield bytes of many kinds and what zlib makes of them in all its ways."""
    for number in range(30):
        size = int(rng.choice([1, 2, 10, 300, 5000, 70000]) * rng.uniform(0.5, 1.5)) + 1
        content = [
            lambda size: rng.integers(0, 256, size),
            np.zeros,
            lambda size: rng.geometric(0.05, size).clip(0, 255),
            lambda size: rng.poisson(60, size).astype("<u2").view(np.uint8)[:size],
            lambda size: np.resize(rng.integers(0, 256, rng.integers(1, 12)), size),
            lambda size: (rng.exponential(3, size) ** 3).clip(0, 255),
        ][number % 6](size)
        content = np.asarray(content).astype(np.uint8).tobytes()
        window, memory, strategy = rng.integers([9, 1, 0], [16, 10, 5]).tolist()
        packer = zlib.compressobj(int(rng.integers(0, 10)), 8, window, memory, strategy)
        stream = packer.compress(content[: size // 2]) + packer.flush(zlib.Z_SYNC_FLUSH)
        yield content, stream + packer.compress(content[size // 2 :]) + packer.flush()


def damaged(stream, rng):
    """Return a stream with a changed bit, other bytes near its start, or cut."""
    changed = bytearray(stream)
    kind = rng.integers(3)
    if kind == 0:
        changed[rng.integers(len(stream))] ^= 1 << rng.integers(8)
    elif kind == 1:
        for _ in range(3):
            changed[rng.integers(min(len(stream), 60))] = rng.integers(256)
    else:
        del changed[rng.integers(len(stream)) :]
    return bytes(changed)


def decompressed(stream, size):
    """Return what zlib makes of a stream, None unless it is of that size."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(stream, size + 1)
    except zlib.error:
        return None
    return content if unpacker.eof and len(content) == size else None


@pytest.mark.skipif(extension_module(RAW_FILES) is None, reason="was not compiled")
class TestSegments:
    """What the compiled function makes of strips, and of what nobody should give it."""

    GUARD = 64

    def read(self, path, stream, size):
        """Return the bytes of a deflated strip, None if they were refused."""
        path.write_bytes(bytes(8) + stream)
        state = path.stat()
        out = np.full(size + 2 * self.GUARD, 0xAB, np.uint8)
        address = out.__array_interface__["data"][0] + self.GUARD
        places = np.array([state.st_size, state.st_mtime_ns, 8, len(stream)], np.int64)
        kind = (1, 1, size, 1, 1, size, 1, 1, 0, 0, 0)
        num_read = raw_reader().read_segments(
            [os.fsencode(path)], [kind], [places], [address], None
        )
        for margin in (out[: self.GUARD], out[-self.GUARD :]):
            assert (margin == 0xAB).all()
        return out[self.GUARD : -self.GUARD].tobytes() if num_read else None

    @pytest.mark.parametrize("seed", range(2))
    def test_streams_are_what_zlib_makes_of_them(self, tmp_path, seed):
        rng = np.random.default_rng(seed)
        for content, stream in zlib_streams(rng):
            assert self.read(tmp_path / "a", stream, len(content)) == content
            assert self.read(tmp_path / "a", stream + b"more", len(content)) == content
            assert self.read(tmp_path / "a", stream, len(content) + 1) is None
            assert (
                len(content) == 1 or self.read(tmp_path / "a", stream, len(content) - 1) is None
            )

    @pytest.mark.parametrize("seed", range(3))
    def test_damaged_streams_are_refused_as_zlib_does(self, tmp_path, seed):
        rng = np.random.default_rng(seed)
        for content, stream in zlib_streams(rng):
            for _ in range(6):
                changed = damaged(stream, rng)
                if changed:
                    expected = decompressed(changed, len(content))
                    assert self.read(tmp_path / "a", changed, len(content)) == expected

    @pytest.mark.parametrize(
        "change",
        [
            {0: 16},
            {0: 18},
            {0: -1},
            {4: 0},
            {4: 2},
            {4: 1 << 62},
            {5: 2},
            {6: 5},
            {7: 0},
            {8: 0},
            {9: 0},
            {10: 0},
        ],
        ids=str,
    )
    def test_records_that_make_no_sense_are_refused(self, change):
        record = np.array([17, 9, 9, 0, 1, 1, 4, 1, 1, 4, 1, 0, 0, 0, 0, 8, 4], np.int64)
        for position, number in change.items():
            record[position] = number

        with pytest.raises(ValueError, match="a whole record for each path"):
            extension_module(RAW_FILES).read_segments(b"nowhere\0", record.tobytes(), -1, 0)

    def test_deflated_strips_are_left_to_who_has_zlib(self, tmp_path):
        path = tmp_path / "a"
        path.write_bytes(bytes(8) + zlib.compress(b"pixels"))
        state = path.stat()
        out = np.empty(6, np.uint8)
        image = [out.__array_interface__["data"][0], 1, 1, 6, 1, 1, 6, 1, 1, 0, 0, 0]
        record = [17, state.st_size, state.st_mtime_ns, *image, 8, state.st_size - 8]
        arguments = os.fsencode(path) + b"\0", np.array(record, np.int64).tobytes(), -1

        assert extension_module(RAW_FILES).read_segments(*arguments, 0) == 0

    @pytest.mark.parametrize("paths", [b"", b"nowhere"])
    def test_paths_and_records_must_be_as_many(self, paths):
        record = np.array([17, 9, 9, 0, 1, 1, 4, 1, 1, 4, 1, 0, 0, 0, 0, 8, 4], np.int64)

        with pytest.raises(ValueError, match="a whole record for each path"):
            extension_module(RAW_FILES).read_segments(paths, record.tobytes(), -1, 0)


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
