"""How near do all cores come to a multiple of one core when folders of images are decoded?

Question: how many images a second do all cores decode, against one core in neighbouring rounds.
Held fixed: images are tiles of real cells (data/nf1_cells.parquet), 3 channels of uint16, small
    (128x128) and large (1024x1024), as TIFF without compression and deflate, and as OME-Zarr 0.4
    and 0.5 (Zstandard, chunks of one plane or 256x256). Pixels go to fresh shared memory; the
    folder has been looked at before; there is work for about a second for each core.
Baseline: the source with one core. All cores decode as many images for each core: child processes
    for small images, threads for large ones. On two cores 1.7 times the baseline is 85 % of what
    two cores could do. Starting a child counts (0.2 s of a core, half of it NumPy's import), so
    longer work comes nearer. Beside other work, compare CPU time an image, printed below each table.
Method: bare is tifffile or zarr in a plain loop that throws the pixels away, one core, a quarter of
    the images.
Losing cases: many cores and little work, where starting the children is a part that shows.
Command: python benchmarks/bench_image_folders.py --json benchmarks/results/<date>-<machine>/image-folders.json
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
import zarr
import zarr.codecs

from _cost import tree_cost
from _facts import usable_cpus
from _harness import FIRST, Benchmark, Run, Work
from fastloader import OMEArrowDataset
from fastloader.shm import MemoryFile, MemoryWriter
from fastloader.sources import open_source

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
SMALL, LARGE = 128, 1024
NONE = {"compression": None}
DEFLATE = {"compression": "zlib", "predictor": True}


@dataclass(frozen=True, slots=True)
class Kind:
    """How images are stored."""

    form: str
    side: int
    options: dict[str, Any]
    images_of_one_core: int
    """What keeps a core busy for about a second; there are as many for each core."""


KINDS = {
    "TIFF none, small": Kind("tiff", SMALL, NONE, 7000),
    "TIFF deflate, small": Kind("tiff", SMALL, DEFLATE, 2500),
    "TIFF none, large": Kind("tiff", LARGE, NONE, 100),
    "TIFF deflate, large": Kind("tiff", LARGE, DEFLATE, 50),
    "OME-Zarr 0.4, small": Kind("zarr2", SMALL, {"chunks": (1, SMALL, SMALL)}, 5000),
    "OME-Zarr 0.5, small": Kind("zarr3", SMALL, {"chunks": (1, SMALL, SMALL)}, 3500),
    "OME-Zarr 0.4, large": Kind("zarr2", LARGE, {"chunks": (1, 256, 256)}, 70),
    "OME-Zarr 0.5, large": Kind("zarr3", LARGE, {"chunks": (1, 256, 256)}, 50),
}
SMOKE_KINDS = ("TIFF deflate, small", "OME-Zarr 0.5, large")
ROWS_PER_STRIP = 64


def make_canvas() -> npt.NDArray[np.uint16]:
    """Return cells side by side, shape ``(3, 2000, 2000)``."""
    cells = OMEArrowDataset(CELLS, dtype=None, progress=False).get_batch(range(300)).numpy()
    rows = [np.concatenate(list(np.roll(cells, n * 7, 0)[:25]), axis=2) for n in range(25)]
    return np.concatenate(rows, axis=1)


def write_images(folder: Path, name: str, kind: Kind, num_images: int) -> Path:
    """Write different cuts of the canvas; from the hundredth on files are copies."""
    canvas = make_canvas()
    rng = np.random.default_rng(0)
    root = folder / name.replace(" ", "-").replace(",", "")
    root.mkdir()
    distinct = 100 if kind.side == SMALL else 10
    for number in range(num_images):
        path = root / f"{number}.{'tif' if kind.form == 'tiff' else 'zarr'}"
        if number >= distinct:
            link_all(root / path.name.replace(str(number), str(number % distinct), 1), path)
            continue
        y, x = rng.integers(0, canvas.shape[1] - kind.side, 2)
        image = np.ascontiguousarray(canvas[:, y : y + kind.side, x : x + kind.side])
        if kind.form == "tiff":
            tifffile.imwrite(
                path,
                image,
                photometric="minisblack",
                metadata={"axes": "CYX"},
                rowsperstrip=ROWS_PER_STRIP,
                **kind.options,
            )
        else:
            write_zarr(path, image, 2 if kind.form == "zarr2" else 3, kind.options["chunks"])
    return root


def link_all(source: Path, target: Path) -> None:
    """Make a second name for a file, or for all files of a store."""
    if source.is_file():
        target.hardlink_to(source)
        return
    for path in source.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.hardlink_to(path)


def write_zarr(
    path: Path, image: npt.NDArray[Any], zarr_format: Any, chunks: tuple[int, ...]
) -> None:
    """Write an OME-Zarr image of one level."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    axes = [{"name": name} for name in "cyx"]
    ome = {"multiscales": [{"axes": axes, "datasets": [{"path": "0"}]}]}
    group.attrs.update(ome if zarr_format == 2 else {"ome": {"version": "0.5", **ome}})
    if zarr_format == 3:
        array = group.create_array(
            "0", shape=image.shape, dtype=image.dtype, chunks=chunks,
            compressors=zarr.codecs.ZstdCodec(level=3),
        )  # fmt: skip
    else:
        array = group.create_array("0", shape=image.shape, dtype=image.dtype, chunks=chunks)
    array[...] = image


class Decoder:
    """Decodes images of a folder into fresh shared memory."""

    def __init__(self, folder: Path) -> None:
        self._source = open_source(folder)
        table = self._source.read_table()
        self._sizes = table.shapes.prod(axis=1) * table.item_sizes
        self.num_images = table.num_rows

    def decode(self, num_images: int, num_cores: int) -> int:
        """Decode the first images and return their size in bytes."""
        sizes = self._sizes[:num_images]
        num_bytes = int(sizes.sum())
        rows, offsets = np.arange(num_images), np.cumsum(sizes) - sizes
        with MemoryFile.create(num_bytes) as file:
            self._source.read_images(rows, offsets, MemoryWriter(file), num_threads=num_cores)
        return num_bytes


def decode(folder: Path, num_images: int, num_cores: int) -> Run:
    """Decode the first images of a folder."""
    decoder = Decoder(folder)

    def run() -> Work:
        before = tree_cost()
        num_bytes = decoder.decode(num_images, num_cores)
        cpu_seconds = (tree_cost() - before).cpu_seconds
        values = {"cpu_us_per_image": cpu_seconds / num_images * 1e6}
        return Work(samples=num_images, nbytes=num_bytes, values=values)

    return run


def bare_tiff(folder: Path, num_images: int) -> Run:
    """Read each file by tifffile."""
    paths = sorted(folder.glob("*.tif"))[:num_images]

    def run() -> Work:
        num_bytes = sum(tifffile.imread(path, maxworkers=1).nbytes for path in paths)
        return Work(samples=len(paths), nbytes=num_bytes)

    return run


def bare_zarr(folder: Path, num_images: int) -> Run:
    """Read each array by zarr."""
    paths = [str(path / "0") for path in sorted(folder.glob("*.zarr"))[:num_images]]
    zarr_format: Any = 3 if (Path(paths[0]) / "zarr.json").exists() else 2

    def run() -> Work:
        num_bytes = 0
        with zarr.config.set({"async.concurrency": 1}):
            for path in paths:
                array = zarr.open_array(path, mode="r", zarr_format=zarr_format)
                num_bytes += np.asarray(array[...]).nbytes
        return Work(samples=len(paths), nbytes=num_bytes)

    return run


def add_kind(benchmark: Benchmark, name: str, kind: Kind, folder: Path, number: int) -> None:
    """Write the images of a kind and add what is measured with them."""
    num_cores = usable_cpus()
    path = write_images(folder, name, kind, number * num_cores)
    bare = bare_tiff if kind.form == "tiff" else bare_zarr
    add = partial(benchmark.add, table=name, folder=path)
    add(f"{name}: one core", decode, num_images=number, num_cores=1)
    number_of_all = number * num_cores
    add(f"{name}: all cores", decode, num_images=number_of_all, num_cores=num_cores)
    add(f"{name}: bare", bare, num_images=number // 4)


def main() -> None:
    """Write the folders and run everything."""
    # One process serves all: to import what each needs would take as long as to measure it.
    benchmark = Benchmark(__doc__, isolate=False)
    benchmark.parser.add_argument("--kinds", default="", help="only kinds that contain this")
    arguments = benchmark.arguments()
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            if arguments.kinds in name and (not arguments.smoke or name in SMOKE_KINDS):
                number = 8 if arguments.smoke else kind.images_of_one_core
                add_kind(benchmark, name, kind, Path(folder), number)
        benchmark.main(baseline=FIRST, compared="samples_per_second")


if __name__ == "__main__":
    main()
