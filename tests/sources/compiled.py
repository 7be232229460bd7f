"""Reading images in C and in Python; the fixture `way` is in conftest.py."""

import numpy as np
import pytest

from fastloader.shm import ArrayWriter, MemoryFile, MemoryWriter

each_way = pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "Python"])
each_target = pytest.mark.parametrize("kind", ["memory", "file", "any writer"])


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
    if kind != "file":
        block = np.zeros(sizes.sum() + 3, np.uint8)[3:]
        writer = ArrayWriter(block)
        write = writer if kind == "memory" else writer.__call__
        source.read_images(np.arange(len(sizes)), offsets, write, **options)
        content = block.tobytes()
    else:
        with MemoryFile.create(int(sizes.sum()) + 3) as file:
            writer = MemoryWriter(file, start_bytes=3)
            source.read_images(np.arange(len(sizes)), offsets, writer, **options)
            content = bytes(file.map())[3:]
    assert sum(progress) == len(sizes)
    return content
