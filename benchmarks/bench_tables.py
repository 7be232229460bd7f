"""How near does each table format come to its own bare read, from file to cache?

Question: images per second from each format to memory that is kept.
Held fixed: real crops (data/nf1_cells.parquet) laid side by side to images of 3 x 512 x 512 uint16,
    each crop scaled by a factor of its own so that none repeats; as lists of numbers and as bytes;
    written with each format's defaults (Parquet: zstd, and lz4), row groups and record batches of
    8. On one core (all threads are bound to it), but where the name says all cores.
Baseline: bare is the library's own stream of the same child columns, decoded and dropped. Ours read
    Parquet by page, lists without their levels and large bytes with one copy, which the library
    cannot: there bare is no floor.
Method: bare and kept is the same stream, its pixels copied once to fresh memory in huge pages, as
    any cache must. For Arrow IPC, where a bare read of mapped pages does nothing at all, this is
    the only floor there is. Ours is `OMEArrowDataset`, which finds, checks and keeps all pixels. In
    random order are all rows one by one with ``preload=False, cache="shared"``, where the first row
    of some row groups (8 MB of pixels) decodes the others with it. On all cores are five times as
    many images, since less is not shared out; so are Arrow files once more, since few are read so
    soon that opening and checking shows. Memory that was kept is given back while no clock
    runs. Bytes against lists are compared with our own read of lists, which takes less than
    Arrow's, and with zstd and lz4 alone: images that are in memory are decompressed by Arrow and
    copied once.
Limit: the bare read, which is the baseline: `x baseline` is the share, but of Parquet, of which
    ours do less, and Arrow IPC, where bare and kept is the floor.
Losing cases: checking and keeping costs more than a bare read wherever decoding is cheap.
Command: python benchmarks/bench_tables.py --json benchmarks/results/<date>-<machine>/tables.json
"""

import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from _harness import Benchmark, CannotRun, Keeping, Run, Work
from _measurement import cannot_run
from _peers import import_peer
from fastloader import OMEArrowDataset
from fastloader.shm import PrivateBlock
from fastloader.sources import ome_arrow_type

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
NUM_IMAGES, SIDE, GROUP_ROWS = 64, 512, 8
SMOKE_IMAGES = 8
MORE = 5
"""Times as many images, where less would not do."""
ALL_CORES = os.sched_getaffinity(0)
FORMATS = ("parquet", "lance", "duckdb", "vortex", "arrow", "feather")


def make_images(num_images: int) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield images of shape ``(3, SIDE, SIDE)``, no part of which repeats."""
    dataset = OMEArrowDataset(CELLS, dtype=None, progress=False)
    cells = dataset.get_batch(range(len(dataset))).numpy().astype(np.float32)
    rng = np.random.default_rng(7)
    across = -(-SIDE // cells.shape[-1])
    for _ in range(num_images):
        chosen = rng.integers(0, len(cells), (across, across))
        rows = [
            np.concatenate([cells[one] * rng.uniform(0.7, 1.2) for one in row], axis=2)
            for row in chosen
        ]
        yield np.concatenate(rows, axis=1)[:, :SIDE, :SIDE].astype(np.uint16)


def make_table(encoding: Any, num_images: int) -> pa.Table:
    """Return images as OME-Arrow, one chunk a channel."""
    values = []
    for image in make_images(num_images):
        chunks = []
        for channel, plane in enumerate(np.ascontiguousarray(image)):
            content: dict[str, Any] = {"pixels": plane.ravel()}
            if encoding == "bytes":
                content = {"dtype": "uint16", "pixel_bytes": plane.tobytes()}
            place = {"t": 0, "c": channel, "z": 0, "y": 0, "x": 0}
            shape = {"shape_z": 1, "shape_y": SIDE, "shape_x": SIDE}
            chunks.append({**place, **shape, **content})
        sizes = {"size_t": 1, "size_c": 3, "size_z": 1, "size_y": SIDE, "size_x": SIDE}
        meta: dict[str, Any] = {"type": "uint16", **sizes}
        values.append({"pixels_meta": meta, "chunks": chunks})
    return pa.table({"image": pa.array(values, ome_arrow_type(encoding=encoding))})


def write_table(
    table: pa.Table,
    folder: Path,
    kind: str,
    encoding: str,
    codec: str = "zstd",
    group_rows: int = GROUP_ROWS,
) -> Path:
    """Write a table in a format, Parquet by a codec.

    Raises:
        CannotRun: If the format's package is not installed.
    """
    path = folder / f"{encoding}.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=group_rows, compression=codec)
    elif kind == "lance":
        import_peer("lance", "pylance").write_dataset(table, path)
    elif kind == "duckdb":
        with import_peer("duckdb", "duckdb").connect(path) as connection:
            connection.register("given", table)
            connection.execute("create table images as select * from given")
    elif kind == "vortex":
        import_peer("vortex", "vortex-data").io.write(table, str(path))
    else:
        options = ipc.IpcWriteOptions(compression="lz4" if kind == "feather" else None)
        with ipc.new_file(path, table.schema, options=options) as file:
            file.write_table(table, max_chunksize=group_rows)
    return path


def stream(path: Path) -> Iterator[pa.Array]:
    """Yield the chunks of the images by the format's own library, nothing else done to them."""
    kind = path.suffix[1:]
    if kind == "parquet":
        columns = ["image.pixels_meta", "image.chunks"]
        for batch in pq.ParquetFile(path, buffer_size=64 << 10).iter_batches(
            GROUP_ROWS, columns=columns, use_threads=False
        ):
            yield batch.column(0).field("chunks")
    elif kind == "lance":
        dataset = importlib.import_module("lance").dataset(path)
        for batch in dataset.to_batches(columns=["image.chunks"], batch_size=5):
            yield batch.column(0)
    elif kind == "duckdb":
        with importlib.import_module("duckdb").connect(path, read_only=True) as connection:
            query = "select image.chunks as chunks from images"
            for batch in connection.sql(query).to_arrow_reader(5):
                yield batch.column(0)
    elif kind == "vortex":
        expression = importlib.import_module("vortex.expr")
        projection = expression.pack({"chunks": expression.column("image")["chunks"]})
        for batch in importlib.import_module("vortex").open(str(path)).to_arrow(projection):
            yield batch.column(0)
    else:
        with pa.memory_map(str(path)) as file:
            reader = ipc.open_file(file, options=ipc.IpcReadOptions(use_threads=False))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number).column(0).field("chunks")


def read_bare(path: Path) -> Run:
    """Decode as a stream, and drop what comes."""
    use_one_core()

    def run() -> Work:
        return Work(samples=sum(len(chunks) for chunks in stream(path)))

    return run


def read_and_keep(path: Path) -> Run:
    """Decode as a stream, and copy all buffers of pixels to fresh memory."""
    use_one_core()

    def run(kept: list[npt.NDArray[np.uint8]]) -> Work:
        done = at = 0
        kept.append(
            PrivateBlock(MORE * NUM_IMAGES * 3 * SIDE * SIDE * 2).view()
        )  # taken as written
        for chunks in stream(path):
            done += len(chunks)
            part = pixels_of(chunks)
            kept[0][at : at + len(part)] = part
            at += len(part)
        return Work(samples=done, nbytes=at)

    return Keeping(run)


def pixels_of(chunks: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of the pixels of some rows."""
    pieces = chunks.flatten()
    names = pieces.type.names
    pixels = pieces.field("pixel_bytes" if "pixel_bytes" in names else "pixels")
    if pa.types.is_binary_view(pixels.type):
        pixels = pixels.cast(pa.large_binary())
    first, last = pixels.offset, pixels.offset + len(pixels)
    item = 2 if "pixels" in names else 1
    wide = pa.types.is_large_binary(pixels.type) or pa.types.is_large_list(pixels.type)
    edges = np.frombuffer(pixels.buffers()[1], np.int64 if wide else np.int32)
    content = np.frombuffer(pixels.buffers()[-1], np.uint8)
    return content[int(edges[first]) * item : int(edges[last]) * item]


def decompress_and_keep(path: Path, codec: str) -> Run:
    """Decompress pixels that are in memory, an image at a time, and copy them to fresh memory."""
    use_one_core()
    image_bytes = 3 * SIDE * SIDE * 2
    compressed = [
        pa.Codec(codec).compress(pixels[at : at + image_bytes].tobytes())
        for pixels in map(pixels_of, stream(path))
        for at in range(0, len(pixels), image_bytes)
    ]

    def run(kept: list[npt.NDArray[np.uint8]]) -> Work:
        kept.append(PrivateBlock(len(compressed) * image_bytes).view())
        decompress = pa.Codec(codec).decompress
        for at, one in enumerate(compressed):
            content = np.frombuffer(decompress(one, image_bytes), np.uint8)
            kept[0][at * image_bytes : (at + 1) * image_bytes] = content
        return Work(samples=len(compressed), nbytes=kept[0].nbytes)

    return Keeping(run)


def preload(path: Path) -> Run:
    """Preload the pixels as a user would."""
    use_one_core()
    return Keeping(lambda kept: preload_to(kept, path))


def preload_on_all_cores(path: Path) -> Run:
    """Preload the pixels where no core is taken."""

    def run(kept: list[OMEArrowDataset]) -> Work:
        os.sched_setaffinity(0, ALL_CORES)
        try:
            return preload_to(kept, path)
        finally:
            use_one_core()

    return Keeping(run)


def preload_to(kept: list[OMEArrowDataset], path: Path) -> Work:
    """Preload a dataset, which stays in a list."""
    dataset = OMEArrowDataset(path, progress=False)
    kept.append(dataset)
    return Work(samples=len(dataset), nbytes=int(dataset.shapes.prod(axis=1).sum()) * 2)


def rows_kept(path: Path) -> Run:
    """Read all rows one by one in random order, keeping what was decoded."""
    use_one_core()

    def run(kept: list[OMEArrowDataset]) -> Work:
        dataset = OMEArrowDataset(path, preload=False, cache="shared", progress=False)
        kept.append(dataset)
        order = np.random.default_rng(3).permutation(len(dataset)).tolist()
        for row in order:
            dataset[row]
        return Work(samples=len(order))

    return Keeping(run)


def use_one_core() -> None:
    """Bind this process to one core: all its threads, libraries' own that live on among them."""
    core = {min(ALL_CORES)}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended by now
            os.sched_setaffinity(int(thread.name), core)


def add_format(
    benchmark: Benchmark, table: pa.Table, folder: Path, kind: str, encoding: str
) -> None:
    """Write a table in a format and compare the ways to read it."""
    group = f"{kind} {encoding}"
    try:
        path = write_table(table, folder, kind, encoding)
    except CannotRun as error:
        benchmark.add(f"{group}: ours", cannot_run, group=group, reason=str(error))
        return
    members = [("bare", read_bare), ("bare and kept", read_and_keep), ("ours", preload)]
    if kind == "parquet":
        members.append(("ours, in random order", rows_kept))
    for name, function in members:
        benchmark.add(f"{group}: {name}", function, group=group, path=path)


def add_bytes_against_lists(benchmark: Benchmark, folder: Path) -> None:
    """Compare the two ways to store pixels, and what no way can leave out of reading bytes."""
    lists, stored = folder / "list.parquet", folder / "bytes.parquet"
    members: list[tuple[str, Callable[..., Run], dict[str, Any]]] = [
        ("lists, ours", preload, {"path": lists}),
        ("lists, bare", read_bare, {"path": lists}),
        ("bytes, ours", preload, {"path": stored}),
        ("bytes by lz4, ours", preload, {"path": folder / "lz4" / stored.name}),
        ("bytes as they are, ours", preload, {"path": folder / "none" / stored.name}),
    ]
    for codec in ("zstd", "lz4"):
        options: dict[str, Any] = {"path": stored, "codec": codec}
        members.append((f"{codec} alone and kept", decompress_and_keep, options))
    group = "parquet, bytes against lists"
    for name, function, options in members:
        benchmark.add(f"{group}: {name}", function, group=group, **options)


def main() -> None:
    """Write the files and run everything."""
    benchmark = Benchmark(__doc__, isolate=False)  # forty configurations, each only a few calls
    num_images = SMOKE_IMAGES if benchmark.arguments().smoke else NUM_IMAGES
    with tempfile.TemporaryDirectory() as folder:
        for encoding in ("list", "bytes"):
            table = make_table(encoding, num_images)
            for kind in FORMATS:
                add_format(benchmark, table, Path(folder), kind, encoding)
            larger, by_lz4, plain = (Path(folder) / name for name in ("larger", "lz4", "none"))
            for place in (larger, by_lz4, plain):
                place.mkdir(exist_ok=True)
            write_table(table, plain, "parquet", encoding, "none")
            path = write_table(table, by_lz4, "parquet", encoding, "lz4")
            group = f"parquet {encoding}, lz4"
            for name, function in (("bare", read_bare), ("ours", preload)):
                benchmark.add(f"{group}: {name}", function, group=group, path=path)
            more = pa.concat_tables([table] * MORE)
            for kind in ("arrow", "feather"):
                path = write_table(more, larger, kind, encoding)
                group = f"{kind} {encoding}, five times as many"
                for name, function in (("bare and kept", read_and_keep), ("ours", preload)):
                    benchmark.add(f"{group}: {name}", function, group=group, path=path)
            path = write_table(more, larger, "parquet", encoding)
            group = f"parquet {encoding}, five times as many"
            for name, function in (
                ("ours", preload),
                ("ours, all cores", preload_on_all_cores),
            ):
                benchmark.add(f"{group}: {name}", function, group=group, path=path)
        add_bytes_against_lists(benchmark, Path(folder))
        benchmark.main(in_groups=True)


if __name__ == "__main__":
    main()
