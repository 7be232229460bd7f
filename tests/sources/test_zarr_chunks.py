"""Zarr arrays read in C give what zarr gives, and errors of Python."""

import os
import pickle
import shutil

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs

from fastloader._extension_modules import RAW_FILES, extension_module
from fastloader.errors import ImageDataError, SourceError
from fastloader.sources import OmeZarrFolder
from fastloader.sources._file_tree import LocalTree
from fastloader.sources._zarr_array import parse_array
from fastloader.sources._zarr_compiled import compiled_numbers
from tests.image_files import random_pixels, write_ome_zarr
from tests.sources.compiled import each_target, each_way, read_flat

DTYPES = ["uint8", "int16", "uint32", "int64", "float16", "float32", "float64"]
STORES = {
    "0.4, Blosc": {"compressors": numcodecs.Blosc("lz4", 3, numcodecs.Blosc.SHUFFLE)},
    "0.4, LZ4": {"compressors": numcodecs.LZ4()},
    "0.4, zlib": {"compressors": numcodecs.Zlib(1)},
    "0.4, Zstandard": {"compressors": numcodecs.Zstd(1)},
    "0.4, none": {"compressors": None, "fill_value": 9},
    "0.4, folders": {"chunk_key_encoding": {"name": "v2", "separator": "/"}, "fill_value": 9},
    "0.5, Zstandard": {"compressors": zarr.codecs.ZstdCodec(level=1)},
    "0.5, Blosc": {"compressors": zarr.codecs.BloscCodec(cname="zstd"), "fill_value": 9},
    "0.5, none": {"compressors": None},
    "0.5, big-endian": {"serializer": zarr.codecs.BytesCodec(endian="big"), "fill_value": 9},
    "0.5, dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "0.5, names of 2": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "0.5, shards": {"shards": (4, 20, 30), "fill_value": 9},
    "0.5, shards, index first": {"shards": (2, 10, 10), "first": True},
    "0.5, shards, no checksum": {"shards": (2, 30, 40), "first": False},
}
SHAPES = [(3, 25, 33), (1, 5, 10), (2, 40, 10), (4, 5, 31)]
CHUNKS = {"chunks": (1, 5, 10)}


def write_stores(folder, form, options):
    """Write a store of each pixel type, and one without anything in its first chunk."""
    pixels = []
    for number, dtype in enumerate(DTYPES):
        image = random_pixels(SHAPES[number % len(SHAPES)], dtype, seed=number)
        given = {**CHUNKS, **options}
        if np.dtype(dtype).itemsize == 1:
            given.pop("serializer", None)
        if (is_first := given.pop("first", None)) is not None:
            codec = zarr.codecs.ShardingCodec(
                chunk_shape=(1, 5, 10),
                index_codecs=[zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec()][
                    : 1 + is_first
                ],
                index_location="start" if is_first else "end",
            )
            given = {"chunks": given["shards"], "serializer": codec, "compressors": None}
        image[:1, :5, :10] = given.get("fill_value", 0)
        path = write_ome_zarr(folder / f"{number}.zarr", image, version=form[:3], **given)
        array = zarr.open_array(path / "00", mode="r")
        np.testing.assert_array_equal(array[...], image)
        pixels.append(image)
    return pixels


@pytest.fixture(scope="module", params=STORES)
def stores(request, tmp_path_factory):
    """A folder of stores of one form, and the pixels in them."""
    folder = tmp_path_factory.mktemp("stores")
    return folder, write_stores(folder, request.param, STORES[request.param])


@each_way
@each_target
@pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr.*")
def test_stores_of_all_kinds_are_read(stores, way, is_compiled, kind):
    folder, pixels = stores

    content = read_flat(OmeZarrFolder(folder), kind, num_threads=2)

    assert content == b"".join(image.tobytes() for image in pixels)
    assert sum(num_read for _, num_read in way) == (len(pixels) if is_compiled else 0)
    assert not is_compiled or {name for name, _ in way} == {"read_chunks"}


@each_way
def test_axes_are_as_many_as_the_array_has(tmp_path, way, is_compiled):
    shapes = {"yx": (7, 9), "zyx": (2, 7, 9), "tczyx": (2, 1, 3, 7, 9), "tyx": (3, 7, 9)}
    pixels = []
    for axes, shape in shapes.items():
        pixels.append(random_pixels(shape, seed=len(pixels)))
        chunks = (*(1,) * (len(shape) - 2), 3, 4)
        write_ome_zarr(tmp_path / f"{len(pixels)}.zarr", pixels[-1], axes, chunks=chunks)

    content = read_flat(OmeZarrFolder(tmp_path), "memory")

    assert content == b"".join(image.tobytes() for image in pixels)
    assert sum(num_read for _, num_read in way) == (len(pixels) if is_compiled else 0)


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def empty(path):
    path.write_bytes(b"")


def lengthen(path):
    path.write_bytes(path.read_bytes() + bytes(3))


def put_a_folder_there(path):
    path.unlink()
    path.mkdir()


FORMS = {
    "none": ("0.4", {"compressors": None}),
    "zlib": ("0.4", {"compressors": numcodecs.Zlib(1)}),
    "Blosc": ("0.4", {"compressors": numcodecs.Blosc("lz4", 3, numcodecs.Blosc.SHUFFLE)}),
    "LZ4": ("0.4", {"compressors": numcodecs.LZ4()}),
    "Zstandard": ("0.5", {"compressors": zarr.codecs.ZstdCodec(checksum=True)}),
    "shards": ("0.5", {"shards": (1, 20, 20)}),
}


@pytest.fixture(scope="module", params=FORMS)
def undamaged(request, tmp_path_factory):
    """A folder of stores of one form, the images in them, the form and the name of a chunk."""
    folder = tmp_path_factory.mktemp("undamaged")
    version, options = FORMS[request.param]
    images = [random_pixels((1, 20, 20), seed=number) for number in range(3)]
    for number, image in enumerate(images):
        write_ome_zarr(
            folder / f"{number}.zarr", image, version=version, chunks=(1, 10, 10), **options
        )
    return folder, images, request.param, {"0.4": "0.0.0", "0.5": "c/0/0/0"}[version]


@each_way
@each_target
@pytest.mark.parametrize("change", [cut, empty, lengthen, put_a_folder_there])
def test_a_damaged_chunk_is_told_and_its_neighbours_are_read(
    tmp_path, way, kind, change, undamaged
):
    folder, images, form, chunk = undamaged
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    source = OmeZarrFolder(tmp_path)
    change(tmp_path / "1.zarr" / "00" / chunk)
    if form == "zlib" and change is lengthen:
        assert read_flat(source, kind) == b"".join(image.tobytes() for image in images)
        return

    with pytest.raises((ImageDataError, SourceError), match=r"1\.zarr.*0"):
        read_flat(source, kind)


@each_way
@each_target
def test_an_array_that_was_made_anew_is_told(tmp_path, way, kind):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 20, 20)))
    source = OmeZarrFolder(path)
    state = (path / "00" / "zarr.json").stat()
    os.utime(path / "00" / "zarr.json", ns=(state.st_atime_ns, state.st_mtime_ns + 1))

    with pytest.raises(SourceError, match="was changed since"):
        read_flat(source, kind)


@each_way
@each_target
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_a_chunk_that_is_written_anew_while_a_cache_is_filled_is_told(
    tmp_path, way, kind, version
):
    path = write_ome_zarr(tmp_path / "a.zarr", random_pixels((1, 20, 20)), version=version)
    for file in path.rglob(
        "*"
    ):  # or what is written within some milliseconds has the same time
        os.utime(file, (0, 1))
    source = OmeZarrFolder(path)
    assert source.fingerprint  # by which caches are found

    zarr.open_array(path / "00")[0] = 7

    with pytest.raises(SourceError, match=r"a\.zarr.*was changed since"):
        read_flat(source, kind)


@each_way
@each_target
def test_chunks_of_which_none_was_changed_are_read_after_the_fingerprint(tmp_path, way, kind):
    image = random_pixels((2, 20, 20))
    image[1] = 0  # is not stored
    source = OmeZarrFolder(write_ome_zarr(tmp_path / "a.zarr", image, chunks=(1, 20, 20)))
    fingerprint = source.fingerprint

    assert read_flat(pickle.loads(pickle.dumps(source)), kind) == image.tobytes()
    assert OmeZarrFolder(tmp_path / "a.zarr").fingerprint == fingerprint


@pytest.mark.skipif(extension_module(RAW_FILES) is None, reason="was not compiled")
class TestCalls:
    """What the compiled function does with arguments that nobody should give it."""

    def record(self, path):
        """Return the record and the paths of a store."""
        array = parse_array(LocalTree(str(path)), "00")
        state = (path / "00" / array.metadata_name).stat()
        paths = [path / "00" / array.metadata_name, f"{path}/00/{array.key_start}"]
        record = np.array(
            [state.st_size, state.st_mtime_ns, 0, *compiled_numbers(array), 1 << 62], np.int64
        )
        return record, b"".join(os.fsencode(one) + b"\0" for one in paths)

    def read(self, path, change=(), functions=(0, 0, 0, 0)):
        pixels = np.full(64 + 2 * 400 + 64, 0xAB, np.uint8)
        record, paths = self.record(path)
        record[2] = pixels.__array_interface__["data"][0] + 64
        for position, number in change:
            record[position] = number
        num_read = extension_module(RAW_FILES).read_arrays(
            paths, record.tobytes(), -1, functions
        )
        assert (pixels[:64] == 0xAB).all()
        assert (pixels[-64:] == 0xAB).all()
        return pixels[64:-64].tobytes() if num_read else None

    @pytest.fixture
    def path(self, tmp_path):
        pixels = random_pixels((1, 20, 20))
        return write_ome_zarr(tmp_path / "a.zarr", pixels, chunks=(1, 10, 10), compressors=None)

    def test_a_record_is_read(self, path):
        assert self.read(path) == random_pixels((1, 20, 20)).tobytes()

    @pytest.mark.parametrize(
        "change",
        [
            *([(position, bad)] for position in range(3, 18) for bad in (0, -1, 1 << 60)),
            *([(18, bad)] for bad in (0, 6)),
            *([(20, bad)] for bad in (0, 9)),
            *([(23, bad)] for bad in (-1, 5)),
            [(12, 30)],
            [(24, 1), (11, 15)],
        ],
        ids=str,
    )
    def test_records_that_make_no_sense_are_refused(self, path, change):
        with pytest.raises(ValueError, match="27 int64 that make sense"):
            self.read(path, change)

    @pytest.mark.parametrize("codec", [1, 2, 3, 4])
    def test_chunks_are_left_to_who_has_the_codec(self, path, codec):
        assert self.read(path, [(23, codec)]) is None

    @pytest.mark.parametrize(
        ("paths", "size"),
        [(b"a\0", 216), (b"a\0b", 216), (b"a\0b\0", 215), (b"a\0b\0", 0), (b"", 216)],
    )
    def test_paths_and_records_must_be_as_many(self, paths, size):
        with pytest.raises(ValueError, match="27 int64 that make sense"):
            extension_module(RAW_FILES).read_arrays(paths, bytes(size), -1, (0, 0, 0, 0))

    def test_none_are_none(self):
        assert extension_module(RAW_FILES).read_arrays(b"", b"", -1, (0, 0, 0, 0)) == 0
