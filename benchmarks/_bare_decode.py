"""Decode image files by their own library, each time a line comes in: a process without FastLoader.

Started by `bench_image_folders` as ``_bare_decode.py FORM PATH...``. A line is a number of images, which
it decodes from the first path on and round again; it answers with their bytes. It keeps no image: one
process would have to take twice the memory of each of two.
"""

import sys
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import numpy as np

__all__: list[str] = []


def open_reader(form: str) -> Callable[[str], Any]:
    """Return what decodes an image on one core."""
    if form == "tiff":
        import tifffile  # noqa: PLC0415 - only what is used

        return lambda path: tifffile.imread(path, maxworkers=1)
    import zarr  # noqa: PLC0415

    zarr.config.set({"async.concurrency": 1, "threading.max_workers": 1})
    zarr_format: Any = int(form.removeprefix("zarr"))
    return lambda path: np.asarray(
        zarr.open_array(f"{path}/0", mode="r", zarr_format=zarr_format)[...]
    )


def main() -> None:
    """Answer until there are no more lines."""
    form, *paths = sys.argv[1:]
    read = open_reader(form)
    for line in sys.stdin:
        print(sum(read(path).nbytes for path in islice(cycle(paths), int(line))), flush=True)


if __name__ == "__main__":
    main()
