"""How near do all cores come to a multiple of one core when folders of images are decoded?

Question: of all that the cores of this machine give beside each other, how much does FastLoader
    reach.
Held fixed: images are tiles of real cells (data/nf1_cells.parquet), 3 channels of uint16, small
    (128x128) and large (1024x1024), as TIFF without compression and deflate (strips of 64 or 512
    rows, and of 4), and as OME-Zarr 0.4 (Blosc) and 0.5 (Zstandard; chunks of one plane or
    256x256). Pixels go to fresh memory, in huge pages where the system has them; the folder has
    been looked at before; there is work for one to two seconds of a core, but of large images
    without compression, which would fill the memory.
Baseline: what the machine gives: a process for each core, started before, which knows of no other
    and decodes images of its own by tifffile or zarr, one after the other and on this core alone
    (zarr's threads would wake each other on two), against one such process alone. Cores that share
    a part of the machine give less than their number.
Method: each run decodes the images with one core and right after it with all. Before each, as much
    memory is filled and given back, since what the machine has not used lately takes several times
    as long. "gain" is how many times sooner all cores are done; "of one core's time" is the
    reverse. The last column is the baseline's over ours: 0.85 is 85 % of what the machine gives.
    Large images of large strips are decoded by threads, as is all that is measured here where
    `_raw_files.c` was compiled, others by child processes. Starting a child counts, so longer work
    comes nearer. Beside other work compare "cpu share": of the CPU time that all cores took, what
    one core takes. It does not see cores that wait for each other.
Limit: the independent processes, which are the baseline: `x baseline` is the share. Images without
    compression are only copied, and cores share the memory. There a further row shows what
    independent processes gain that read as many files, whole, to fresh memory, and nothing else.
Losing cases: many cores and little work, where starting the children is a part that shows.
Command: python benchmarks/bench_image_folders.py --json benchmarks/results/<date>-<machine>/image-folders.json
"""

import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
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
from fastloader.shm import ArrayWriter, MemoryFile, MemoryWriter, PrivateBlock, gives_huge_pages
from fastloader.sources import open_source

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
SMALL, LARGE = 128, 1024
NONE = {"compression": None}
DEFLATE = {"compression": "zlib", "predictor": True, "rowsperstrip": 64}


@dataclass(frozen=True, slots=True)
class Kind:
    """How images are stored."""

    form: str
    side: int
    options: dict[str, Any]
    num_images: int
    bare_images: int
    """What keeps the format's own library busy for half a second."""


KINDS = {
    "TIFF none, small": Kind("tiff", SMALL, NONE, 16000, 2000),
    "TIFF deflate, small": Kind("tiff", SMALL, DEFLATE, 4500, 600),
    "TIFF none, large": Kind("tiff", LARGE, NONE, 300, 300),
    "TIFF deflate, large": Kind("tiff", LARGE, {**DEFLATE, "rowsperstrip": 512}, 90, 50),
    "TIFF deflate, large, small strips": Kind(
        "tiff", LARGE, {**DEFLATE, "rowsperstrip": 4}, 60, 16
    ),
    "OME-Zarr 0.4, small": Kind("zarr2", SMALL, {"chunks": (1, SMALL, SMALL)}, 7000, 160),
    "OME-Zarr 0.5, small": Kind("zarr3", SMALL, {"chunks": (1, SMALL, SMALL)}, 4500, 160),
    "OME-Zarr 0.4, large": Kind("zarr2", LARGE, {"chunks": (1, 256, 256)}, 100, 16),
    "OME-Zarr 0.5, large": Kind("zarr3", LARGE, {"chunks": (1, 256, 256)}, 100, 16),
}
SMOKE_KINDS = ("TIFF none, small", "TIFF deflate, small", "OME-Zarr 0.5, large")


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


def compare_cores(decode: Callable[[int], int], num_images: int, num_bytes: int) -> Work:
    """Decode images by one core and then by all.

    Args:
        decode: Decodes all images by that many cores, and returns their bytes.
        num_images: How many images that are.
        num_bytes: How many bytes.
    """
    seconds, cpu_seconds, nbytes = [], [], 0
    for num_cores in (1, usable_cpus()):
        np.full(num_bytes, 1, np.uint8)  # given back at once, to be taken by what follows
        before, start = tree_cost(), time.perf_counter()
        nbytes += decode(num_cores)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append((tree_cost() - before).cpu_seconds)
    values = {
        "of_one_cores_time": seconds[1] / seconds[0],
        "gain": seconds[0] / seconds[1],
        "cpu_share": cpu_seconds[0] / max(cpu_seconds[1], 1e-9),
        "one_core_images_per_second": num_images / seconds[0],
        "all_cores_images_per_second": num_images / seconds[1],
        "one_core_cpu_us_per_image": cpu_seconds[0] / num_images * 1e6,
        "all_cores_cpu_us_per_image": cpu_seconds[1] / num_images * 1e6,
    }
    return Work(samples=2 * num_images, nbytes=nbytes, values=values)


def decode_fast(folder: Path, num_images: int) -> Run:
    """Decode by FastLoader's source."""
    source = open_source(folder)
    table = source.read_table()
    sizes = (table.shapes.prod(axis=1) * table.item_sizes)[:num_images]
    rows, offsets, num_bytes = np.arange(num_images), np.cumsum(sizes) - sizes, int(sizes.sum())

    def decode(num_cores: int) -> int:
        if gives_huge_pages():
            write = ArrayWriter(PrivateBlock(num_bytes).view())
            source.read_images(rows, offsets, write, num_threads=num_cores)
            return num_bytes
        with MemoryFile.create(num_bytes) as file:
            source.read_images(rows, offsets, MemoryWriter(file), num_threads=num_cores)
        return num_bytes

    return lambda: compare_cores(decode, num_images, num_bytes)


class BareProcess:
    """Decodes images when it is told to, on one core where the system lets it be chosen."""

    def __init__(self, form: str, paths: list[Path], core: int) -> None:
        script = Path(__file__).with_name("_bare_decode.py")
        one_thread = {"BLOSC_NTHREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(script), form, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread},
        )
        weakref.finalize(self, end, self._process)
        if sys.platform == "linux":
            os.sched_setaffinity(self._process.pid, {core})

    def begin(self, num_images: int) -> None:
        """Tell it how many."""
        assert self._process.stdin is not None
        print(num_images, file=self._process.stdin, flush=True)

    def wait(self) -> int:
        """Return the bytes of its images when it is done."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def end(process: "subprocess.Popen[str]") -> None:
    """Let a process come to its end."""
    with process:
        assert process.stdin is not None
        process.stdin.close()


def decode_bare(folder: Path, form: str, num_images: int) -> Run:
    """Decode by independent processes."""
    paths = sorted(folder.iterdir())
    share = min(len(paths) // usable_cpus(), 1000)  # the length of arguments is limited
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else range(usable_cpus())
    processes = [
        BareProcess(form, paths[number * share : (number + 1) * share], core)
        for number, core in enumerate(cores[: usable_cpus()])
    ]

    def decode(num_cores: int) -> int:
        for process in processes[:num_cores]:
            process.begin(num_images // num_cores)
        return sum(process.wait() for process in processes[:num_cores])

    decode(len(processes))  # they have imported what they need
    num_bytes = decode(1)  # and the first has seen all images
    return lambda: compare_cores(decode, num_images, num_bytes)


def add_kind(benchmark: Benchmark, name: str, kind: Kind, folder: Path, *, smoke: bool) -> None:
    """Write the images of a kind and add what is measured with them."""
    number, bare_number = (16, 16) if smoke else (kind.num_images, kind.bare_images)
    path = write_images(folder, name, kind, number)
    benchmark.add(
        f"{name}: independent processes",
        decode_bare, table=name, folder=path, form=kind.form, num_images=bare_number,
    )  # fmt: skip
    if kind.options == NONE:
        benchmark.add(
            f"{name}: independent processes that only copy",
            decode_bare, table=name, folder=path, form="copy", num_images=number,
        )  # fmt: skip
    benchmark.add(
        f"{name}: FastLoader", decode_fast, table=name, folder=path, num_images=number
    )


def main() -> None:
    """Write the folders and run everything."""
    # One process serves all: to import what each needs would take as long as to measure it.
    benchmark = Benchmark(__doc__, isolate=False)
    benchmark.parser.add_argument("--kinds", default="", help="only kinds that contain this")
    arguments = benchmark.arguments()
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():
            if arguments.kinds in name and (not arguments.smoke or name in SMOKE_KINDS):
                add_kind(benchmark, name, kind, Path(folder), smoke=arguments.smoke)
        benchmark.main(baseline=FIRST, compared="of_one_cores_time")


if __name__ == "__main__":
    main()
