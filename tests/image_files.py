"""Image files that tests write, and what a source reads of them."""

import os
import time
from pathlib import Path

import numpy as np
import tifffile
import zarr

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


def write_sparse_tiff(path, planes, left_out, nodata=None, **options):
    """Write a TIFF file of some pages of which strips or tiles are left out; return its path.

    Args:
        path: Of the file.
        planes: Pixels of each page.
        left_out: Numbers of the strips or tiles of each page.
        nodata: Value of their pixels, as GDAL notes it.
        **options: Of `tifffile`.
    """
    tags = [] if nodata is None else [(42113, 2, 0, nodata, False)]
    with tifffile.TiffWriter(path) as writer:
        for plane in planes:
            kind = {"metadata": None, "photometric": "minisblack", "contiguous": False}
            writer.write(plane, extratags=tags, **kind, **options)
    places = ("TileOffsets", "TileByteCounts", "StripOffsets", "StripByteCounts")
    with tifffile.TiffFile(path, mode="r+b") as file:
        for page, numbers in zip(file.pages, left_out, strict=True):
            for tag in [page.tags[name] for name in places if name in page.tags]:
                kept = [0 if n in numbers else at for n, at in enumerate(tag.value)]
                tag.overwrite(kept if len(kept) > 1 else kept[0])
    return Path(path)


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


def write_ome_zarr(
    path, pixels, axes="cyx", version="0.5", *, num_levels=1, name="0", **options
):
    """Write an OME-Zarr image whose levels are halved by leaving pixels out; return its path."""
    zarr_format = 3 if version == "0.5" else 2
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    datasets = []
    for level in range(num_levels):
        steps = [2**level if axis in "yx" else 1 for axis in axes]
        part = pixels[tuple(slice(None, None, step) for step in steps)]
        chunks = options.get("chunks") or part.shape
        kept = {key: value for key, value in options.items() if key != "chunks"}
        array = group.create_array(
            f"{name}{level}", shape=part.shape, chunks=chunks, dtype=part.dtype, **kept
        )
        array[...] = part
        scale = [
            0.5 * step if axis in "zyx" else 1 for axis, step in zip(axes, steps, strict=True)
        ]
        transformation = {"type": "scale", "scale": scale}
        datasets.append({
            "path": f"{name}{level}",
            "coordinateTransformations": [transformation],
        })
    kinds = {"t": "time", "c": "channel"}
    described = [{"name": axis, "type": kinds.get(axis, "space")} for axis in axes]
    set_ome(path, {"multiscales": [{"axes": described, "datasets": datasets}]}, version)
    return Path(path)


def set_ome(path, attributes, version="0.5"):
    """Set the OME-Zarr attributes of a group, which is made if it is not there."""
    zarr_format = 3 if version == "0.5" else 2
    group = zarr.open_group(path, mode="a", zarr_format=zarr_format)
    stated = {**attributes, "version": version}
    group.attrs.update({"ome": stated} if version == "0.5" else attributes)


def write_plate(path, images, version="0.5"):
    """Write a plate; `images` has the pixels of the fields of each well, ``{"A/1": [...]}``."""
    wells = [
        {"path": well, "rowIndex": "ABCDEFGH".index(well[0]), "columnIndex": int(well[2:]) - 1}
        for well in images
    ]
    set_ome(path, {"plate": {"name": "plate one", "wells": wells}}, version)
    for well, fields in images.items():
        stated = [{"path": str(n), "acquisition": 1} for n in range(len(fields))]
        zarr.open_group(Path(path, well[0]), mode="a", zarr_format=3 if version == "0.5" else 2)
        set_ome(Path(path, well), {"well": {"images": stated}}, version)
        for number, pixels in enumerate(fields):
            write_ome_zarr(Path(path, well, str(number)), pixels, version=version)
    return Path(path)


class DyingFolder(TiffFolder):
    """Ends a child process that decodes; the parent waits until one has, ten seconds at most."""

    owner = -1

    def decode(self, row, out, channels):
        marker = Path(self.where, "died")
        if os.getpid() != self.owner:
            marker.touch()
            os._exit(3)
        super().decode(row, out, channels)
        deadline = time.monotonic() + 10
        while row >= 5 and not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
