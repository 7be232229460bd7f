"""How near does preloading OME-Arrow images come to what reading the file costs anyway?

Question: images per second from a table in memory, and from the file to the cache; and the peak of
    memory while preloading, over the size of the cache, in a fresh process.
Held fixed: real crops (data/nf1_cells.parquet, repeated; tiled and cut for the large ones), as
    lists of numbers and as bytes, zstd, row groups of 64 and 8; decoded by one thread, behind which
    ours writes with another where there is a second core.
Baseline: ``as_py`` for pixels of a table in memory; for files a bare streaming read of the same
    child columns, which decodes and throws away.
Method: ``as_py`` from the file to images is there as well for lists of small images, as the public
    benchmark of OME-Arrow does it.
Limit: the bare read, which is the baseline: `x baseline` is the share; of lists of small images
    ours read less than it does. A table in memory has none: what is done is to take its pixels
    where they lie.
Losing cases: bytes, which are decoded about as fast as the system gives fresh pages to keep them
    in.
Command: python benchmarks/bench_preload.py --json benchmarks/results/<date>-<machine>/preload.json
"""

import multiprocessing
import resource
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from _harness import Benchmark, Keeping, Run, Work
from fastloader import OMEArrowDataset
from fastloader.sources import ParquetSource, ome_arrow_type
from fastloader.sources._batch_rows import rows_at_once

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
SIZES = {"small": (2000, 80, 64), "large": (192, 512, 8)}
"""Number of images, height and width, rows of a row group."""
SMOKE_SHARE = 24


def make_images(kind: str, *, smoke: bool) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield images of shape ``(3, H, W)``."""
    num_images, side, _ = SIZES[kind]
    dataset = OMEArrowDataset(CELLS, dtype=None, progress=False)
    cells = dataset.get_batch(range(len(dataset))).numpy()
    repeats = -(-side // cells.shape[-1])
    for number in range(num_images // SMOKE_SHARE if smoke else num_images):
        yield np.tile(cells[number % len(cells)], (1, repeats, repeats))[:, :side, :side]


def write_file(folder: Path, kind: str, encoding: Any, *, smoke: bool) -> Path:
    """Write images as OME-Arrow, one chunk a channel."""
    path = folder / f"{kind}_{encoding}.parquet"
    values = []
    for image in make_images(kind, smoke=smoke):
        num_channels, height, width = image.shape
        place = {
            "t": 0,
            "z": 0,
            "y": 0,
            "x": 0,
            "shape_z": 1,
            "shape_y": height,
            "shape_x": width,
        }
        chunks = []
        for channel, plane in enumerate(np.ascontiguousarray(image)):
            content: dict[str, Any] = {"pixels": plane.ravel()}
            if encoding == "bytes":
                content = {"dtype": plane.dtype.name, "pixel_bytes": plane.tobytes()}
            chunks.append({**place, "c": channel, **content})
        sizes = {"size_t": 1, "size_c": num_channels, "size_y": height, "size_x": width}
        meta: dict[str, Any] = {"type": image.dtype.name, "size_z": 1, **sizes}
        values.append({"pixels_meta": meta, "chunks": chunks})
    column = pa.array(values, ome_arrow_type(encoding=encoding))
    pq.write_table(
        pa.table({"image": column}), path, row_group_size=SIZES[kind][2], compression="zstd"
    )
    return path


def rows_of_batch(kind: str) -> int:
    """Return as many rows as our reader takes at once of bytes; of lists it takes fewer."""
    num_images, side, _ = SIZES[kind]
    return rows_at_once(np.full(num_images, 3 * side * side * 2), is_in_lists=False)


def image_as_py(value: dict[str, Any]) -> npt.NDArray[np.uint16]:
    """Make an image of what ``as_py`` gives."""
    meta = value["pixels_meta"]
    image = np.zeros((meta["size_c"], meta["size_y"], meta["size_x"]), np.uint16)
    for chunk in value["chunks"]:
        pixels = np.array(chunk["pixels"], np.uint16)
        image[chunk["c"]] = pixels.reshape(chunk["shape_y"], chunk["shape_x"])
    return image


def extract_as_py(path: Path) -> Run:
    """Extract from a table in memory, through Python objects."""
    column = pq.read_table(path)["image"]

    def run() -> Work:
        images = [image_as_py(column[row].as_py()) for row in range(len(column))]
        return Work(samples=len(images))

    return run


def extract_ours(path: Path) -> Run:
    """Extract from a table in memory, through Arrow's buffers."""
    from fastloader.sources._ome_arrow_layout import ColumnLayout  # noqa: PLC0415
    from fastloader.sources._ome_arrow_pixels import PixelWriter  # noqa: PLC0415

    file = pq.ParquetFile(path)
    arrays = [batch.column("image") for batch in file.iter_batches(file.metadata.num_rows)]
    table = ParquetSource(path).read_table()
    sizes = table.shapes.prod(axis=1) * 2
    block = np.zeros(int(sizes.sum()), np.uint8)
    layout = ColumnLayout.of(arrays[0].type, "table")

    def write(offset: int, pixels: npt.NDArray[Any]) -> None:
        block[offset : offset + pixels.nbytes] = pixels.view(np.uint8)

    def run() -> Work:
        writer = PixelWriter(
            layout,
            table,
            np.arange(table.num_rows),
            np.cumsum(sizes) - sizes,
            write,
            channels=None,
            where="table",
        )
        done = 0
        for array in arrays:
            done += writer.write(array, done + np.arange(len(array)))
        return Work(samples=done, nbytes=block.nbytes)

    return run


def read_bare(path: Path, batch_rows: int) -> Run:
    """Decode the same child columns as a stream, and drop what comes."""
    schema = pq.ParquetFile(path).schema
    leaves = [schema.column(i).path for i in range(len(schema))]
    leaves = [
        leaf for leaf in leaves if leaf.startswith(("image.chunks.", "image.pixels_meta."))
    ]

    def run() -> Work:
        num_rows = 0
        file = pq.ParquetFile(path, buffer_size=64 << 10)
        for batch in file.iter_batches(batch_rows, columns=leaves, use_threads=False):
            num_rows += batch.num_rows
        return Work(samples=num_rows)

    return run


def preload(path: Path) -> Run:
    """Preload the pixels as a user would."""

    def run(kept: list[OMEArrowDataset]) -> Work:
        dataset = OMEArrowDataset(path, progress=False)
        kept.append(dataset)
        num_bytes = int(dataset.shapes.prod(axis=1).sum()) * 2
        return Work(samples=len(dataset), nbytes=num_bytes)

    return Keeping(run)


def preload_as_py(path: Path) -> Run:
    """Preload through Python objects, as the public benchmark of OME-Arrow does."""

    def run() -> Work:
        column = pq.read_table(path)["image"]
        images = [image_as_py(column[row].as_py()) for row in range(len(column))]
        return Work(samples=len(images))

    return run


def peak(path: Path) -> Run:
    """Preload in a fresh process and watch its memory."""

    def run() -> Work:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=send_peak, args=(path, theirs))
        process.start()
        cache_bytes, grown_bytes = ours.recv()
        process.join()
        values = {"cache_bytes": cache_bytes, "peak_over_cache": grown_bytes / cache_bytes}
        return Work(samples=1, values=values)

    return run


def send_peak(path: Path, connection: Connection) -> None:
    """Send the size of the cache and by how much memory grew at most, in bytes."""
    len(OMEArrowDataset(CELLS, progress=False))  # imports and Arrow's pools are no part of it
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset = OMEArrowDataset(path, progress=False)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    grown_bytes = grown_kb * 1024 + memory_files_bytes()
    connection.send((int(dataset.shapes.prod(axis=1).sum()) * 2, grown_bytes))


def memory_files_bytes() -> int:
    """Return the memory in files of this process: written, not mapped, so not resident."""
    opened = [
        descriptor for descriptor in Path("/proc/self/fd").iterdir() if descriptor.exists()
    ]
    files = [one.stat() for one in opened if one.readlink().name.startswith("memfd:")]
    # Several descriptors may be of one file.
    return sum({file.st_ino: file.st_blocks * 512 for file in files}.values())


def main() -> None:
    """Write the files and run everything."""
    benchmark = Benchmark(__doc__)
    smoke = benchmark.arguments().smoke
    with tempfile.TemporaryDirectory() as folder:
        small = write_file(Path(folder), "small", "list", smoke=smoke)
        group = "extraction"
        benchmark.add("extraction: as_py", extract_as_py, group=group, path=small)
        benchmark.add("extraction: ours", extract_ours, group=group, path=small)
        for kind in ("small",) if smoke else SIZES:
            batch_rows = rows_of_batch(kind)
            for encoding in ("list", "bytes"):
                group = f"{kind} {encoding}"
                path = write_file(Path(folder), kind, encoding, smoke=smoke)
                benchmark.add(
                    f"{group}: bare read",
                    read_bare,
                    group=group,
                    path=path,
                    batch_rows=batch_rows,
                )
                benchmark.add(f"{group}: OMEArrowDataset", preload, group=group, path=path)
                if group == "small list":
                    benchmark.add(f"{group}: as_py", preload_as_py, group=group, path=path)
                if kind == "large" or (
                    smoke and encoding == "list"
                ):  # Arrow's own 20 to 40 MB would blur a small one
                    benchmark.add(f"{group}: memory", peak, group=f"{group} memory", path=path)
        benchmark.main(in_groups=True)


if __name__ == "__main__":
    main()
