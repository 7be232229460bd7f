"""What does a random image of a table cost where nothing is kept?

Question: images per second from each table format, one row after the other, and 8 and 32 in one
    batch.
Held fixed: the images of bench_tables.py, 64 of 3 x 512 x 512 uint16 (96 MiB), in row groups and
    record batches of 16, the fewest that `fastloader.writing.convert` puts into a row group (pyarrow
    puts all of them into one), kept open; 8 rows of places all over their row groups, in random
    order, others in each run, and 32 of any places; on one core (this process is bound to it). Of
    Parquet, Lance and DuckDB also files as `convert` writes them, and of DuckDB lists in a table
    with a primary key.
Baseline: as_py, what readers of OME-Arrow do: the row group or record batch is read and its row
    made Python objects. Of Parquet also where somebody has read the whole table before, and keeps
    it in memory.
Method: bare is the cheapest read of the chunks of a row that the format's library offers, dropped.
    It is a floor, but of Parquet, where ours read by page and the library cannot, and of compressed
    Arrow files, of which ours decompress the row, the library its record batch; DuckDB decodes 2048
    rows, also where the chunks of one are only counted, unless it finds rows by a key. Ours are `OMEArrowDataset(path, preload=False, cache="none")`, which
    checks each image and copies it to a tensor of its own. Of DuckDB tables they keep up to 64 MiB
    of what they decoded last, so that some of these rows may be found there, and of compressed Arrow
    files where blocks of LZ4 begin; "nothing kept" lets go of that before each row.
Limit: the bare read of a row, for one row at a time: its `x baseline` is what there is to be
    reached. None of rows in batches, which share a read, nor of Parquet and compressed Arrow files,
    of which ours read less than their library can.
Losing cases: bytes are hardly slower as Python objects, so that little can be saved. Of Parquet, a
    table that was read whole before gives rows without reading, for its size in memory: a cache
    does the same.
Command: python benchmarks/bench_rows.py --json benchmarks/results/<date>-<machine>/rows.json
"""

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from _harness import Benchmark, Run, Work
from bench_tables import (
    FORMATS,
    SMOKE_IMAGES,
    make_table,
    use_one_core,
    write_table,
)
from fastloader import OMEArrowDataset
from fastloader.sources._kept_blocks import KeptBlocks
from fastloader.writing import convert

NUM_IMAGES, GROUP_ROWS, NUM_ROWS = 64, 16, 8
LARGE_BATCH_ROWS = 32
KEYS = {"keyed": "number", "converted": "fastloader_row"}
"""Numbers of rows that are the primary key of a table of DuckDB, by the name of the file."""

ReadRow: TypeAlias = Callable[[int], Any]


def random_rows(num_rows: int, rng: np.random.Generator) -> list[int]:
    """Return rows in random order, whose places in their row groups are spread evenly."""
    group_rows = min(GROUP_ROWS, num_rows)
    step = group_rows // NUM_ROWS
    places = rng.permutation(NUM_ROWS) * step + rng.integers(step)
    groups = rng.integers(0, num_rows // group_rows, NUM_ROWS)
    return [int(row) for row in groups * group_rows + places]


def random_batch(num_rows: int, batch_rows: int, rng: np.random.Generator) -> list[int]:
    """Return the rows of a batch, each another one."""
    return [int(row) for row in rng.permutation(num_rows)[:batch_rows]]


def column_of(path: Path) -> str:
    """Return the column of the images."""
    return "ome_arrow" if path.stem == "converted" else "image"


def image_of(value: dict[str, Any]) -> npt.NDArray[np.uint16]:
    """Make an image of Python objects."""
    planes = [
        np.array(chunk["pixels"], np.uint16)
        if "pixels" in chunk
        else np.frombuffer(chunk["pixel_bytes"], np.uint16)
        for chunk in value["chunks"]
    ]
    return np.stack(planes)


def reader_of_kept_table(path: Path) -> ReadRow:
    """Return what makes an image of a row of a table that was read before."""
    images = pq.read_table(path).column(0)
    return lambda row: image_of(images[row].as_py())


def reader_as_py(path: Path) -> ReadRow:
    """Return what reads a row as Python objects and makes an image of it."""
    kind, name = path.suffix[1:], column_of(path)
    if kind == "parquet":
        file = pq.ParquetFile(path)

        def read_parquet(row: int) -> Any:
            group = file.read_row_group(row // GROUP_ROWS)
            return image_of(group.column(0)[row % GROUP_ROWS].as_py())

        return read_parquet
    if kind in {"arrow", "feather"}:
        batches = ipc.open_file(pa.memory_map(str(path)))

        def read_batch(row: int) -> Any:
            images = batches.get_batch(row // GROUP_ROWS).column(0)
            return image_of(images[row % GROUP_ROWS].as_py())

        return read_batch
    if kind == "lance":
        dataset = importlib.import_module("lance").dataset(path)
        return lambda row: image_of(dataset.take([row], columns=[name])[name][0].as_py())
    if kind == "duckdb":
        connection = importlib.import_module("duckdb").connect(path, read_only=True)
        query = f"select {name} from images where rowid = ?"
        return lambda row: image_of(connection.execute(query, [row]).fetchone()[0])
    vortex = importlib.import_module("vortex")
    opened = vortex.open(str(path))

    def read_vortex(row: int) -> Any:
        indices = vortex.array(pa.array([row], pa.uint64()))
        table = opened.to_arrow(["image"], indices=indices).read_all()
        return image_of(table["image"][0].as_py())

    return read_vortex


def reader_bare(path: Path) -> ReadRow:
    """Return the cheapest that reads the chunks of a row, and drops them."""
    kind, name = path.suffix[1:], column_of(path)
    if kind == "parquet":
        file = pq.ParquetFile(path)
        column = file.schema_arrow.names[0]

        def read_parquet(row: int) -> Any:
            rows = file.iter_batches(
                row % GROUP_ROWS + 1,
                row_groups=[row // GROUP_ROWS],
                columns=[f"{column}.chunks"],
                use_threads=False,
            )
            return next(rows)

        return read_parquet
    if kind in {"arrow", "feather"}:
        options = ipc.IpcReadOptions(use_threads=False)
        batches = ipc.open_file(pa.memory_map(str(path)), options=options)
        return lambda row: batches.get_batch(row // GROUP_ROWS).column(0).field("chunks")
    if kind == "lance":
        dataset = importlib.import_module("lance").dataset(path)
        return lambda row: dataset.take([row], columns=[f"{name}.chunks"])
    if kind == "duckdb":
        connection = importlib.import_module("duckdb").connect(path, read_only=True)
        query = f"select {name}.chunks as chunks from images where {KEYS.get(path.stem, 'rowid')} = "
        return lambda row: connection.sql(f"{query}{row}").to_arrow_table()
    vortex = importlib.import_module("vortex")
    column = importlib.import_module("vortex.expr").column("image")
    projection = importlib.import_module("vortex.expr").pack({"chunks": column["chunks"]})
    opened = vortex.open(str(path), memory_map=True)

    def read_vortex(row: int) -> Any:
        indices = vortex.array(pa.array([row], pa.uint64()))
        return list(opened.scan(projection, indices=indices))

    return read_vortex


def reader_of_count(path: Path) -> ReadRow:
    """Return the cheapest query of DuckDB that looks at the chunks of a row, which it counts."""
    connection = importlib.import_module("duckdb").connect(path, read_only=True)
    query = "select len(image.chunks) from images where rowid = {}"
    return lambda row: connection.sql(query.format(row)).fetchall()


def reader_ours(path: Path) -> ReadRow:
    """Return what reads a row through `OMEArrowDataset`."""
    return open_dataset(path).__getitem__


def reader_ours_anew(path: Path) -> ReadRow:
    """Return what reads a row through `OMEArrowDataset` without anything of the rows before."""
    dataset = open_dataset(path)

    def read(row: int) -> Any:
        KeptBlocks.forget_all()
        return dataset[row]

    return read


def rows_by(path: Path, make_reader: Callable[[Path], ReadRow]) -> Run:
    """Read rows one after the other."""
    use_one_core()
    read, num_rows, rng = make_reader(path), len(open_dataset(path)), np.random.default_rng(3)

    def run() -> Work:
        rows = random_rows(num_rows, rng)
        for row in rows:
            read(row)
        return Work(samples=len(rows))

    return run


def batch_ours(path: Path, batch_rows: int) -> Run:
    """Read rows as one batch: as few as one after the other the same."""
    use_one_core()
    dataset, rng = open_dataset(path), np.random.default_rng(3)

    def run() -> Work:
        if batch_rows == NUM_ROWS:
            rows = random_rows(len(dataset), rng)
        else:
            rows = random_batch(len(dataset), batch_rows, rng)
        return Work(samples=len(dataset.get_batch(rows)))

    return run


def open_dataset(path: Path) -> OMEArrowDataset:
    """Open a table of which nothing is kept, with pixels in the type of the file."""
    return OMEArrowDataset(path, preload=False, cache="none", dtype=None, progress=False)


def add_group(benchmark: Benchmark, group: str, path: Path) -> None:
    """Add the ways to read the rows of a file."""
    readers = {"as_py": reader_as_py, "bare": reader_bare, "ours": reader_ours}
    if path.suffix == ".parquet":
        readers["as_py, whole table in memory"] = reader_of_kept_table
    if path.suffix == ".duckdb" and path.stem not in KEYS:
        readers["chunks counted"] = reader_of_count
    if path.suffix in {".feather", ".duckdb"} and path.stem not in KEYS:
        readers["ours, nothing kept"] = reader_ours_anew
    for name, make_reader in readers.items():
        options: dict[str, Any] = {"group": group, "path": path, "make_reader": make_reader}
        benchmark.add(f"{group}: {name}", rows_by, **options)
    for batch_rows in (NUM_ROWS, LARGE_BATCH_ROWS):
        options = {"group": group, "path": path, "batch_rows": batch_rows}
        benchmark.add(f"{group}: ours, {batch_rows} at once", batch_ours, **options)


def write_keyed(path: Path) -> Path:
    """Write a table of DuckDB once more, with a primary key."""
    keyed = path.with_stem("keyed")
    with importlib.import_module("duckdb").connect(keyed) as connection:
        connection.execute(f"attach '{path}' as plain (read_only)")
        connection.execute(
            "create table images as select rowid as number, image from plain.images"
        )
        connection.execute("alter table images add primary key (number)")
    return keyed


def main() -> None:
    """Write the files and run everything."""
    benchmark = Benchmark(
        __doc__, isolate=False
    )  # ninety configurations, each only a few calls
    num_images = SMOKE_IMAGES if benchmark.arguments().smoke else NUM_IMAGES
    with tempfile.TemporaryDirectory() as folder:
        for encoding in ("list", "bytes"):
            table = make_table(encoding, num_images)
            for kind in FORMATS:
                path = write_table(table, Path(folder), kind, encoding, group_rows=GROUP_ROWS)
                add_group(benchmark, f"{kind} {encoding}", path)
        keyed = write_keyed(Path(folder) / "list.duckdb")
        add_group(benchmark, "duckdb list, with a primary key", keyed)
        for kind in ("parquet", "lance", "duckdb"):
            converted = Path(folder) / f"converted.{kind}"
            convert(Path(folder) / "bytes.parquet", converted, progress=False)
            add_group(benchmark, f"{kind} bytes, as convert writes them", converted)
        benchmark.main(in_groups=True, compared="samples_per_second")


if __name__ == "__main__":
    main()
