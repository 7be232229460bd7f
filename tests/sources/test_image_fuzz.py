"""Damaged image files give documented errors or right sizes: no crash, no hang, no huge memory."""

import os
import resource
import shutil
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import tifffile
import zarr.codecs

from fastloader.errors import ImageDataError, MissingExtraError, SourceError
from fastloader.sources import OmeArrowFolder, OmeZarrFolder, TiffFolder
from tests.image_files import (
    assert_images,
    random_pixels,
    read_all,
    set_ome,
    write_ome_set,
    write_ome_zarr,
    write_plate,
    write_sparse_tiff,
    write_tiff,
)
from tests.sources.test_ome_arrow_folder import write_folder

DATA = Path(__file__).parents[1] / "data"
ROOM_BYTES = 2 << 30
SECONDS = 20
SHARE = 60  # of CI
WHOLE = 2400  # of each format, marked stress

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="bounds memory by RLIMIT_AS"),
    pytest.mark.filterwarnings("ignore"),  # what libraries think of damage
]


@contextmanager
def bounded():
    """Let a case take two GiB of address space and twenty seconds more than it has taken."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (now + ROOM_BYTES, before[1]))
    signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def too_slow(*_):
    raise TimeoutError("a damaged file took too long")


def mutate(content, rng):
    """Return bytes with some flipped, set, removed, doubled or cut off."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, max(1, len(content))))
        kind = rng.integers(0, 7)
        if kind == 0 and content:
            content[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            values = [0, 1, 0x7F, 0x80, 0xFF]
            content[at : at + 1] = bytes([values[rng.integers(0, 5)]])
        elif kind == 2:
            values = [0, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 1, 1 << 20]
            content[at : at + 4] = values[rng.integers(0, 6)].to_bytes(4, "little")
        elif kind == 3:
            del content[at : at + int(rng.integers(1, 9))]
        elif kind == 4:
            content[at:at] = content[at : at + int(rng.integers(1, 9))]
        elif kind == 5 and rng.integers(0, 4) == 0:
            del content[at:]
        else:  # digits of text: sizes in headers
            content[at : at + 2] = b"99"
    return bytes(content)


def try_reading(open_source, expects_name):
    """Read all images of a damaged source; return what happened."""
    try:
        with bounded():
            source = open_source()
            shapes = source.read_table().shapes
            num_bytes = shapes.prod(axis=1).astype(float) @ source.read_table().item_sizes
            if num_bytes > 1 << 28:
                return "too large for memory"  # which a cache refuses by itself
            with patch("fastloader.sources._compiled_job.raw_reader", lambda: None):
                images = read_all(source)
            in_place = read_all(source, in_place=True)  # of some files, by other code
            list(source.iterate_descriptions())
    except (SourceError, MissingExtraError) as error:
        told = error
    else:
        for shape, image, other in zip(shapes.tolist(), images, in_place, strict=True):
            assert list(image.shape) == shape
            assert image.tobytes() == other.tobytes()
        return "read"
    assert expects_name in str(told), told
    return type(told).__name__


def tiff_seeds(folder):
    """Write files of many kinds and return their bytes."""
    pixels = random_pixels((3, 40, 36))
    write_tiff(folder / "raw.tif", pixels, "CYX")
    write_tiff(folder / "big.tif", pixels, "CYX", byteorder=">", bigtiff=True)
    write_tiff(folder / "tiled.tif", pixels, "CYX", tile=(16, 16), compression="zlib")
    write_tiff(folder / "ome.ome.tif", pixels, "ZYX", compression="lzw", predictor=True)
    tifffile.imwrite(folder / "imagej.tif", pixels, imagej=True, metadata={"axes": "ZYX"})
    rgb = random_pixels((40, 36, 3), "uint8")
    tifffile.imwrite(folder / "rgb.tif", rgb, photometric="rgb", compression="packbits")
    write_tiff(folder / "bits.tif", random_pixels((40, 36), "bool"))
    write_sparse_tiff(folder / "sparse.tif", pixels[:1], [{1, 4}], "3", tile=(16, 16))
    write_ome_set(folder / "set", pixels)
    paths = [*folder.glob("*.tif"), folder / "set" / "set_C0.ome.tif"]
    paths += sorted((DATA / "tiff").glob("*.tif"))
    return [(path.name, path.read_bytes()) for path in sorted(paths)]


def fuzz_tiff(folder, num_cases):
    seeds = tiff_seeds(folder / "seeds")
    results = Counter()
    for case in range(num_cases):
        rng = np.random.default_rng(case)
        name, content = seeds[case % len(seeds)]
        # Tags and headers are a small part of a file: damage them as often as pixels.
        path = folder / "cases" / name
        path.parent.mkdir(exist_ok=True)
        if rng.integers(0, 2) and len(content) > 2000:
            head = int(rng.integers(0, 2)) * (len(content) - 1200)
            middle = mutate(content[head : head + 1200], rng)
            path.write_bytes(content[:head] + middle + content[head + 1200 :])
        else:
            path.write_bytes(mutate(content, rng))
        results[try_reading(lambda path=path: TiffFolder(path), name)] += 1
    return results


def zarr_seeds(folder):
    """Write stores of many kinds and return their folders."""
    pixels = random_pixels((2, 20, 18))
    options = {"chunks": (1, 8, 8)}
    write_ome_zarr(folder / "v2.zarr", pixels, version="0.4", num_levels=2, **options)
    zstd, crc = zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()
    write_ome_zarr(folder / "v3.zarr", pixels, num_levels=2, compressors=zstd, **options)
    write_ome_zarr(
        folder / "sharded.zarr",
        pixels,
        shards=(1, 16, 16),
        compressors=[zstd, crc],
        **options,
    )
    blosc = zarr.codecs.BloscCodec()
    write_ome_zarr(folder / "blosc.zarr", pixels, compressors=blosc, **options)
    gzip = zarr.codecs.GzipCodec()
    write_ome_zarr(folder / "gzip.zarr", pixels, compressors=[gzip, zstd], **options)
    write_plate(folder / "plate.zarr", {"A/1": [pixels], "B/2": [pixels]})
    set_ome(folder / "collection.zarr", {"bioformats2raw.layout": 3}, "0.4")
    write_ome_zarr(folder / "collection.zarr" / "0", pixels, version="0.4")
    return sorted(folder.glob("*.zarr"))


def fresh_copy(seed, folder):
    """Return a copy of a folder in another one, in place of the one that was damaged before."""
    copy = folder / seed.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(seed, copy)
    return copy


def fuzz_zarr(folder, num_cases):
    seeds = zarr_seeds(folder / "seeds")
    results = Counter()
    for case in range(num_cases):
        rng = np.random.default_rng(case)
        seed = seeds[case % len(seeds)]
        store = fresh_copy(seed, folder / "cases")
        files = sorted(path for path in store.rglob("*") if path.is_file())
        metadata = [path for path in files if path.name.startswith((".z", "zarr"))]
        chosen = metadata if rng.integers(0, 2) else files
        path = chosen[rng.integers(0, len(chosen))]
        path.write_bytes(mutate(path.read_bytes(), rng))
        results[try_reading(lambda store=store: OmeZarrFolder(store), store.name)] += 1
    return results


def fuzz_ome_arrow(folder, num_cases):
    several = [random_pixels((1, 2, 1, 8, 6)), random_pixels((2, 1, 3, 5, 9), "uint8")]
    floats = [random_pixels((1, 1, 1, 20, 20), "float32", seed) for seed in range(4)]
    seeds = [
        write_folder(folder / "seeds" / "several", several),
        write_folder(folder / "seeds" / "floats", floats, seed=3, row_group_size=5),
    ]
    results = Counter()
    for case in range(num_cases):
        rng = np.random.default_rng(case)
        seed = seeds[case % len(seeds)]
        copy = fresh_copy(seed, folder / "cases")
        path = sorted(copy.iterdir())[rng.integers(0, 3)]
        content = path.read_bytes()
        # What is in a table is at its end, and small: damage it as often as all else.
        kept = max(0, len(content) - 1200) if rng.integers(0, 2) else 0
        path.write_bytes(content[:kept] + mutate(content[kept:], rng))
        results[try_reading(lambda copy=copy: OmeArrowFolder(copy), copy.name)] += 1
    return results


FUZZ = pytest.mark.parametrize(
    "fuzz", [fuzz_tiff, fuzz_zarr, fuzz_ome_arrow], ids=["tiff", "zarr", "ome-arrow"]
)


def damage_pixels(path, start, stop, seed):
    """Change bytes of a file in a range, but not when it was written."""
    state = path.stat()
    content = path.read_bytes()
    damaged = mutate(content[start:stop], np.random.default_rng(seed))
    damaged = damaged[: stop - start].ljust(stop - start, b"\0")
    path.write_bytes(content[:start] + damaged + content[stop:])
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def assert_never_wrong(source, expected):
    try:
        images = read_all(source)
    except ImageDataError:
        return
    assert_images(expected, images)


@pytest.mark.parametrize("seed", range(30))
def test_damage_to_pixels_with_a_checksum_is_never_wrong_pixels(tmp_path, seed):
    pixels = random_pixels((40, 36))
    path = write_tiff(tmp_path / "a.tif", pixels, compression="zlib", rowsperstrip=40)
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        start, length = page.dataoffsets[0], page.databytecounts[0]
    codecs = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    shards = {"chunks": (1, 10, 9), "shards": (1, 40, 36)}
    store = write_ome_zarr(tmp_path / "a.zarr", pixels[None], compressors=codecs, **shards)
    chunk = store / "00" / "c" / "0" / "0" / "0"
    tiff, ome_zarr = TiffFolder(path), OmeZarrFolder(store)

    damage_pixels(path, start, start + length, seed)
    damage_pixels(chunk, 0, chunk.stat().st_size, seed)

    assert_never_wrong(tiff, [pixels[None, None, None]])
    assert_never_wrong(ome_zarr, [pixels[None, None, None]])


@FUZZ
def test_damaged_files_give_documented_errors(tmp_path, fuzz):
    results = fuzz(tmp_path, SHARE)

    assert sum(results.values()) == SHARE
    assert len(results) > 1


@pytest.mark.stress
@FUZZ
def test_many_damaged_files_give_documented_errors(tmp_path, fuzz):
    results = fuzz(tmp_path, WHOLE)

    assert sum(results.values()) == WHOLE
