"""Read many damaged files in a child process, and tell what came of each.

The kind "pages" is Parquet that is read by page whatever its size.
"""

import multiprocessing
import resource
import shutil
import tempfile
import warnings
from pathlib import Path

import numpy as np

MEMORY_BYTES = 8 << 30  # of addresses, most of which the libraries reserve and never touch
SECONDS = 120  # for the start or for one file, which takes some 10 ms

ALLOWED = {"same", "differs as told", "SourceError", "ImageDataError", "SettingsError"}
"""Outcomes that are right: pixels that a plain reader gives too, or an error that is documented."""


def mutate(content, rng):
    """Return a file with a few things wrong with it."""
    content = bytearray(content)
    moves = rng.random() < 0.15  # what moves the rest is mostly noticed at once
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        size = len(content)
        if size < 2:
            break
        # The ends of files say where all the rest is.
        first = 0 if rng.random() < 0.4 else max(0, size - 6000)
        at, length = int(rng.integers(first, size)), int(rng.integers(1, 17))
        if moves:
            _move(content, at, length, rng)
        else:
            _overwrite(content, at, length, rng)
    return bytes(content)


def _overwrite(content, at, length, rng):
    stop = min(len(content), at + length)
    byte = int(rng.integers(0, 256))
    choices = [
        bytes([content[at] ^ 1 << byte % 8]),
        bytes([byte]),
        bytes([(0, 1, 127, 128, 255)[byte % 5]]),
        rng.bytes(stop - at),
        bytes(stop - at),
    ]
    chosen = choices[int(rng.integers(0, len(choices)))]
    content[at : at + len(chosen)] = chosen


def _move(content, at, length, rng):
    match int(rng.integers(0, 3)):
        case 0:
            del content[at : at + length]
        case 1:
            del content[at:]
        case 2:
            other = int(rng.integers(0, len(content)))
            content[at:at] = content[other : other + length]


def damage(path, rng):
    """Damage a file, or one of those in a folder."""
    files = (
        [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    )
    file = files[int(rng.integers(0, len(files)))]
    file.write_bytes(mutate(file.read_bytes(), rng))


def write_originals(folder, kind):
    """Return undamaged files of a format and the images in them."""
    from tests.ome_arrow_tables import ome_arrow_value
    from tests.sources.test_formats import mixed_values, write

    values, images = mixed_values()
    lists, in_bytes = folder / "list", folder / "bytes"
    lists.mkdir()
    in_bytes.mkdir()
    columns = {"n": range(len(values)), "well": ["A", "B", None, "A", "C", "B", "A"]}
    encoded = [
        None if one is None else ome_arrow_value(one, encoding="bytes", codec="zstd")
        for one in images
    ]
    return [
        (write(lists, kind, values, **columns), images),
        (write(in_bytes, kind, encoded, encoding="bytes", **columns), images),
    ]


def outcome_of(path, images):
    """Return what reading a damaged file comes to, in one word or two."""
    from fastloader.errors import FastLoaderError
    from fastloader.sources import open_source
    from tests.sources.reading import read_images

    try:
        source = open_source(path, "image")
        found = read_images(source)
        source.read_channel_names()
        list(source.iterate_descriptions())
        for name in source.column_names:
            source.read_column(name)
    except FastLoaderError as error:
        if path.name not in str(error):
            return f"names no file: {error}"
        return type(error).__name__
    except BaseException as error:  # noqa: BLE001 - a panic is none of Exception
        return f"{type(error).__name__}: {str(error)[:300]!r}"
    if len(found) == len(images) and all(
        (a is None and b is None)
        or (a is not None and b is not None and a.dtype == b.dtype and np.array_equal(a, b))
        for a, b in zip(images, found, strict=True)
    ):
        return "same"
    return "differs as told" if _plain_reader_agrees(path, found) else "differs"


def _plain_reader_agrees(path, found):
    """Return whether a plain reader, or none, gives what we read of a damaged file."""
    from tests.ome_arrow_tables import read_as_py
    from tests.sources.plain_readers import read_plain

    try:
        plain = read_as_py(read_plain(path))
    except Exception:  # noqa: BLE001 - it is less forgiving: then there is nothing to compare
        return True
    return len(plain) == len(found) and all(
        (a is None and b is None)
        or (
            a is not None
            and b is not None
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
        for a, b in zip(plain, found, strict=True)
    )


def read_damaged(kind, first, last, connection):
    """Damage and read, one seed after the other; send each before, and then what came of it."""
    warnings.simplefilter("ignore")
    if kind == "pages":
        from fastloader.sources import _parquet

        kind, _parquet.is_worth_pages = "parquet", lambda *_, **__: True
    with tempfile.TemporaryDirectory() as folder:
        originals = write_originals(Path(folder), kind)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        for seed in range(first, last):
            connection.send((seed, None))
            rng = np.random.default_rng(seed)
            original, images = originals[seed % len(originals)]
            # Names of their own: DuckDB gives whoever opens a path that is open what it has of it.
            path = Path(folder) / f"damaged{seed}.{kind}"
            if original.is_dir():
                shutil.copytree(original, path)
            else:
                shutil.copy(original, path)
            damage(path, rng)
            connection.send((seed, outcome_of(path, images)))
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def run_in_children(kind, first, last):
    """Return the outcome of each seed; that of a process that died is how it ended."""
    context = multiprocessing.get_context(
        "forkserver"
    )  # has imported torch, once for all kinds
    outcomes = {}
    while first < last:
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=read_damaged, args=(kind, first, last, there))
        child.start()
        there.close()
        with here:
            outcomes |= received(here, child)
        child.join()
        if first not in outcomes:
            raise RuntimeError(f"nothing was read: the process ended with {child.exitcode}")
        for seed, outcome in outcomes.items():
            outcomes[seed] = outcome or f"died ({child.exitcode})"
        first = max(outcomes) + 1
    return outcomes


def received(connection, child):
    """Return what a child sends until it ends; one that takes too long is ended."""
    outcomes = {}
    try:
        while connection.poll(SECONDS):
            seed, outcomes[seed] = connection.recv()
    except EOFError:
        return outcomes
    child.kill()
    return outcomes
