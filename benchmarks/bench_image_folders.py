"""How near do all cores come to a multiple of one core when folders of images are decoded?

Images are tiles of real cells (data/nf1_cells.parquet), 3 channels of uint16, small (128x128)
and large (1024x1024), as TIFF without compression, deflate and LZW, and as OME-Zarr 0.4 and 0.5
(Zstandard, chunks of one plane or 256x256). Held fixed: pixels go to fresh shared memory, the
folder has been looked at before. For each kind:

* one core: the source with one thread (the baseline);
* bare: tifffile or zarr in a plain loop that throws the pixels away, one thread;
* all cores: the same as one core, and after that as many times as many images as there are cores,
  with all of them: child processes for small images, threads for large ones. ``share`` is the time
  of the first over that of the second: 1 if cores do not get in each other's way;
* look: the headers of all files, with all cores.

    python benchmarks/bench_image_folders.py --json benchmarks/results/<date>-<machine>/image-folders.json
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
import zarr
import zarr.codecs

from _facts import usable_cpus
from _harness import Benchmark, Run, Work
from fastloader import OMEArrowDataset
from fastloader.shm import MemoryFile, MemoryWriter
from fastloader.sources import open_source

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
SMALL, LARGE = 128, 1024
KINDS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "TIFF none, small": ("tiff", SMALL, {"compression": None}),
    "TIFF deflate, small": ("tiff", SMALL, {"compression": "zlib", "predictor": True}),
    "TIFF LZW, small": ("tiff", SMALL, {"compression": "lzw", "predictor": True}),
    "TIFF none, large": ("tiff", LARGE, {"compression": None}),
    "TIFF deflate, large": ("tiff", LARGE, {"compression": "zlib", "predictor": True}),
    "TIFF LZW, large": ("tiff", LARGE, {"compression": "lzw", "predictor": True}),
    "OME-Zarr 0.4, small": ("zarr2", SMALL, {"chunks": (1, SMALL, SMALL)}),
    "OME-Zarr 0.5, small": ("zarr3", SMALL, {"chunks": (1, SMALL, SMALL)}),
    "OME-Zarr 0.4, large": ("zarr2", LARGE, {"chunks": (1, 256, 256)}),
    "OME-Zarr 0.5, large": ("zarr3", LARGE, {"chunks": (1, 256, 256)}),
}
IMAGES_OF_ONE_CORE = {SMALL: 4000, LARGE: 80}
"""What keeps a core busy for one to three seconds; there are as many for each core."""
ROWS_PER_STRIP = {SMALL: 64, LARGE: 64}


def count_images(side: int, *, smoke: bool) -> int:
    """Return how many images one core decodes."""
    return 4 if smoke else IMAGES_OF_ONE_CORE[side]


def make_canvas() -> npt.NDArray[np.uint16]:
    """Return cells side by side, shape ``(3, 2000, 2000)``."""
    cells = OMEArrowDataset(CELLS, dtype=None, progress=False).get_batch(range(300)).numpy()
    rows = [np.concatenate(list(np.roll(cells, n * 7, 0)[:25]), axis=2) for n in range(25)]
    return np.concatenate(rows, axis=1)


def write_images(folder: Path, kind: str, *, smoke: bool) -> Path:
    """Write different cuts of the canvas; from the hundredth on files are copies."""
    form, side, options = KINDS[kind]
    canvas = make_canvas()
    rng = np.random.default_rng(0)
    root = folder / kind.replace(" ", "-").replace(",", "")
    root.mkdir()
    num_images = count_images(side, smoke=smoke) * usable_cpus()
    distinct = 100 if side == SMALL else 10
    for number in range(num_images):
        path = root / f"{number}.{'tif' if form == 'tiff' else 'zarr'}"
        if number >= distinct:
            link_all(root / path.name.replace(str(number), str(number % distinct), 1), path)
            continue
        y, x = rng.integers(0, canvas.shape[1] - side, 2)
        image = np.ascontiguousarray(canvas[:, y : y + side, x : x + side])
        if form == "tiff":
            tifffile.imwrite(
                path,
                image,
                photometric="minisblack",
                metadata={"axes": "CYX"},
                rowsperstrip=ROWS_PER_STRIP[side],
                **options,
            )
        else:
            write_zarr(path, image, 2 if form == "zarr2" else 3, options["chunks"])
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


def one_core(folder: Path, num_images: int) -> Run:
    """Decode some images with one core."""
    decoder = Decoder(folder)

    def run() -> Work:
        return Work(samples=num_images, nbytes=decoder.decode(num_images, 1))

    return run


def all_cores(folder: Path, num_images: int) -> Run:
    """Decode some images with one core, then as many for each core with all."""
    decoder = Decoder(folder)

    def run() -> Work:
        start = time.perf_counter()
        decoder.decode(num_images, 1)
        between = time.perf_counter()
        decoder.decode(decoder.num_images, usable_cpus())
        seconds = {"one": between - start, "all": time.perf_counter() - between}
        values = {
            "one_core_seconds": seconds["one"],
            "all_cores_seconds": seconds["all"],
            "share": seconds["one"] / seconds["all"],
        }
        return Work(samples=num_images + decoder.num_images, values=values)

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


def look(folder: Path) -> Run:
    """Look at the folder."""

    def run() -> Work:
        return Work(samples=open_source(folder).num_rows)

    return run


def main() -> None:
    """Write the folders and run everything."""
    benchmark = Benchmark(__doc__)
    benchmark.parser.add_argument("--kinds", default="", help="only kinds that contain this")
    arguments = benchmark.arguments()
    kinds = [kind for kind in KINDS if arguments.kinds in kind]
    if arguments.smoke:
        kinds = kinds[1:-2:6]  # one of TIFF, one of OME-Zarr
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = write_images(Path(folder), kind, smoke=arguments.smoke)
            some = {
                "folder": path,
                "num_images": count_images(KINDS[kind][1], smoke=arguments.smoke),
            }
            bare = bare_tiff if KINDS[kind][0] == "tiff" else bare_zarr
            benchmark.add(f"{kind}: one core", one_core, group=kind, **some)
            benchmark.add(f"{kind}: bare", bare, group=kind, **some)
            benchmark.add(f"{kind}: all cores", all_cores, group=kind, **some)
            benchmark.add(f"{kind}: look", look, group=kind, folder=path)
        benchmark.main(in_groups=True)


if __name__ == "__main__":
    main()
