"""Image files that tests write, and what a source reads of them."""

import os
import time
from pathlib import Path

import numpy as np
import tifffile

from fastloader.shm import MemoryFile, MemoryWriter
from fastloader.sources import TiffFolder


def read_all(source, rows=None, *, in_place=False, **options):
    """Return all images of a source, shape T, C, Z, Y, X each.

    Args:
        source: Any source of which every row has an image.
        rows: Which; all when left out.
        in_place: Let the source write to shared memory itself.
        **options: Of `read_images`.
    """
    table = source.read_table()
    rows = np.arange(table.num_rows) if rows is None else np.asarray(rows, np.int64)
    shapes = table.shapes[rows].copy()
    if options.get("channels") is not None:
        shapes[:, 1] = len(options["channels"])
    sizes = shapes.prod(axis=1) * table.item_sizes[rows]
    padded = -(-sizes // 16) * 16
    offsets = np.cumsum(padded) - padded
    with MemoryFile.create(int(padded.sum())) as file:
        writer = MemoryWriter(file)
        write = writer if in_place else writer.__call__
        source.read_images(rows, offsets, write, **options)
        return [
            writer.view(int(offset), tuple(shape.tolist()), table.dtypes[code]).copy()
            for offset, shape, code in zip(
                offsets, shapes, table.dtype_codes[rows], strict=True
            )
        ]


def assert_images(expected, actual):
    """Check that images are equal in pixels and type."""
    assert len(expected) == len(actual)
    for one, other in zip(expected, actual, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def random_pixels(shape, dtype="uint16", seed=0):
    """Return pixels of any type, with some of its largest and smallest values."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        return rng.normal(0, 1000, shape).astype(dtype)
    pixels = rng.integers(0, 50, shape).astype(dtype)
    pixels.flat[0] = np.iinfo(dtype).max
    pixels.flat[-1] = np.iinfo(dtype).min
    return pixels


def write_tiff(path, pixels, axes="YX", **options):
    """Write a TIFF file with axes as tifffile notes them and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"photometric": "minisblack", **options}
    tifffile.imwrite(path, pixels, metadata={"axes": axes}, **options)
    return path


def write_ome_set(folder, planes):
    """Write an image of one file a channel, joined by an OME header; return the paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"set_C{channel}.ome.tif" for channel in range(len(planes))]
    uuids = [f"urn:uuid:00000000-0000-0000-0000-00000000000{c}" for c in range(len(planes))]
    height, width = planes[0].shape
    channels = "".join(
        f'<Channel ID="Channel:0:{c}" Name="marker {c}" SamplesPerPixel="1"/>'
        for c in range(len(planes))
    )
    data = "".join(
        f'<TiffData FirstC="{c}" IFD="0" PlaneCount="1"><UUID FileName="{name}">{uuid}</UUID>'
        "</TiffData>"
        for c, (name, uuid) in enumerate(zip(names, uuids, strict=True))
    )
    for name, uuid, plane in zip(names, uuids, planes, strict=True):
        header = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            f'<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" UUID="{uuid}">'
            '<Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYZCT" '
            f'Type="{plane.dtype.name}" SizeX="{width}" SizeY="{height}" SizeZ="1" '
            f'SizeC="{len(planes)}" SizeT="1">{channels}{data}</Pixels></Image></OME>'
        )
        tifffile.imwrite(folder / name, plane, description=header, metadata=None)
    return [folder / name for name in names]


class DyingFolder(TiffFolder):
    """Ends a child process that decodes, while the parent is slow."""

    owner = -1

    def decode(self, row, out, channels):
        if os.getpid() != self.owner:
            os._exit(3)
        super().decode(row, out, channels)
        time.sleep(0.1)
