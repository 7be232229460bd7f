"""Read the images of a source, and compare them."""

import numpy as np


def read_images(source, rows=None, **options):
    """Return all images of a source, None for rows without."""
    table = source.read_table()
    rows = np.flatnonzero(table.has_image) if rows is None else np.asarray(rows, np.int64)
    shapes = table.shapes[rows].copy()
    if options.get("channels") is not None:
        shapes[:, 1] = len(options["channels"])
    sizes = shapes.prod(axis=1) * table.item_sizes[rows]
    offsets = np.cumsum(sizes) - sizes
    block = bytearray(int(sizes.sum()))

    def write(offset, pixels):
        assert pixels.dtype in table.dtypes  # whoever writes rows to a batch counts on it
        block[offset : offset + pixels.nbytes] = pixels.tobytes()

    source.read_images(rows, offsets, write, **options)
    images = [None] * table.num_rows
    for row, shape, offset, size in zip(rows, shapes, offsets, sizes, strict=True):
        dtype = table.dtypes[table.dtype_codes[row]]
        images[row] = np.frombuffer(block[offset : offset + size], dtype).reshape(shape)
    return images


def assert_same(expected, actual):
    """Compare images, dtypes and which rows have none."""
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        if one is None or other is None:
            assert one is other
        else:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
