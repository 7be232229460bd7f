"""Decode image files by their own library, each time a line comes in: a process without FastLoader.

Started by `bench_image_folders` as ``_bare_decode.py FORM PATH...``. A line is a number of images, which
it decodes from the first path on and round again; it answers with their bytes. It keeps no image: one
process would have to take twice the memory of each of two. Only the form ``copy`` holds all of a
line at once: it reads whole files to fresh memory, in huge pages where the system has them, which
is the least that a cache of images without compression takes.
"""

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

__all__: list[str] = []


def open_reader(form: str) -> Callable[[Sequence[str]], int]:
    """Return what reads images on one core and tells their bytes."""
    if form == "copy":
        return copy_files
    if form == "tiff":
        import tifffile  # noqa: PLC0415 - only what is used

        return lambda paths: sum(tifffile.imread(path, maxworkers=1).nbytes for path in paths)
    import zarr  # noqa: PLC0415

    zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
    zarr_format: Any = int(form.removeprefix("zarr"))

    def read(path: str) -> Any:
        return zarr.open_array(f"{path}/0", mode="r", zarr_format=zarr_format)[...]

    return lambda paths: sum(np.asarray(read(path)).nbytes for path in paths)


def copy_files(paths: Sequence[str]) -> int:
    """Read files behind one another to memory that was not used before."""
    sizes = [os.stat(path).st_size for path in paths]  # noqa: PTH116 - the cheapest way
    with mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = 0
        with memoryview(memory) as block:
            for path, size in zip(paths, sizes, strict=True):
                descriptor = os.open(path, os.O_RDONLY)
                with block[start : start + size] as part:
                    start += os.preadv(descriptor, [part], 0)
                os.close(descriptor)
    return start


def main() -> None:
    """Answer until there are no more lines."""
    form, *paths = sys.argv[1:]
    read = open_reader(form)
    for line in sys.stdin:
        print(read(list(islice(cycle(paths), int(line)))), flush=True)


if __name__ == "__main__":
    main()
