"""Write OME-Arrow tables for tests, and read them the slow and plain way."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fastloader.sources import ome_arrow_type

PLACE = ("t", "c", "z", "y", "x", "shape_z", "shape_y", "shape_x")


def ome_arrow_value(
    image, *, tile=None, encoding="list", codec=None, as_planes=False, order=None
):
    """Return an image (T, C, Z, Y, X) as a dict.

    `tile` is the size (z, y, x) of a chunk, one plane when left out; `order` shuffles pieces.
    """
    num_t, num_c, num_z, height, width = image.shape
    tile_z, tile_y, tile_x = tile or (1, height, width)
    chunks, planes = [], []
    for t, c, z, y, x in np.ndindex(
        num_t, num_c, -(-num_z // tile_z), -(-height // tile_y), -(-width // tile_x)
    ):
        start = (z * tile_z, y * tile_y, x * tile_x)
        box = image[t, c][
            tuple(slice(a, a + n) for a, n in zip(start, (tile_z, tile_y, tile_x), strict=True))
        ]
        place = dict(zip(PLACE, (t, c, *start, *box.shape), strict=True))
        chunks.append({**place, **_content(box, encoding, codec)})
    for t, c, z in np.ndindex(num_t, num_c, num_z):
        planes.append({"t": t, "c": c, "z": z, "pixels": image[t, c, z].ravel().tolist()})
    if order is not None:
        chunks, planes = order(chunks), order(planes)
    sizes = dict(
        zip(("size_t", "size_c", "size_z", "size_y", "size_x"), image.shape, strict=True)
    )
    names = [{"id": str(c), "name": f"channel {c}"} for c in range(num_c)]
    return {
        "type": "ome.arrow",
        "version": "0.1.0",
        "pixels_meta": {"type": image.dtype.name, **sizes, "channels": names},
        "chunks": None if as_planes else chunks,
        "planes": planes if as_planes else [],
    }


def _content(box, encoding, codec):
    if encoding == "list":
        return {"pixels": box.ravel()}
    content = np.ascontiguousarray(box).tobytes()
    if codec is not None:
        content = pa.Codec(codec).compress(content, asbytes=True)
    return {"dtype": box.dtype.name, "compression": codec, "pixel_bytes": content}


def image_array(values, dtype="uint16", *, encoding="list"):
    """Return a column of `ome_arrow_value`s in the canonical type."""
    return pa.array(values, ome_arrow_type(pa.from_numpy_dtype(dtype), encoding=encoding))


def write_images(path, values, dtype="uint16", *, encoding="list", row_group_size=2, **columns):
    """Write a Parquet file with the column `image` and others, and return its path."""
    table = pa.table({"image": image_array(values, dtype, encoding=encoding), **columns})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def read_as_py(array):
    """Return the images of a column the plain way: through Python objects."""
    return [None if value is None else _image_of(value) for value in array.to_pylist()]


def _image_of(value):
    meta = value["pixels_meta"]
    shape = tuple(meta[f"size_{axis}"] for axis in "tczyx")
    image = None
    for piece in value.get("chunks") or value["planes"]:
        if "pixel_bytes" in piece:
            content = piece["pixel_bytes"]
            size = (piece["shape_z"], piece["shape_y"], piece["shape_x"])
            if piece["compression"] is not None:
                num_bytes = int(np.prod(size)) * np.dtype(piece["dtype"]).itemsize
                content = pa.Codec(piece["compression"]).decompress(content, num_bytes)
            pixels = np.frombuffer(content, piece["dtype"])
        else:
            pixels = np.array(piece["pixels"], meta["type"])
        image = np.zeros(shape, pixels.dtype) if image is None else image
        z, y, x = piece["z"], piece.get("y", 0), piece.get("x", 0)
        dz, dy, dx = (
            piece.get(f"shape_{a}", n) for a, n in zip("zyx", (1, *shape[3:]), strict=True)
        )
        box = image[piece["t"], piece["c"], z : z + dz, y : y + dy, x : x + dx]
        box[...] = pixels.reshape(dz, dy, dx)
    return image


def random_image(shape, dtype="uint16", seed=0):
    """Return random pixels over the whole range of an integer type, or around 0."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return rng.normal(size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
