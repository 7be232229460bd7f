"""What does a loader add to reading TIFF files and augmenting them with NumPy?

Question: how much CPU time does a sample cost with each loader, and how many come in a second.
Held fixed: a sample is a deflate TIFF of 512x512 uint16 (real cells, data/nf1_cells.parquet), read
    by tifffile, turned, scaled by two percentiles and clipped, as a user writes it. Batches of 16,
    shuffled, two workers.
Baseline: the bare samples, one after the other in a plain loop. The last column is its CPU time
    over that of the others: 0.87 or more is at most 15 % added. More than 1 are loaders whose
    workers do not give the memory of arrays back to the system after each sample.
Method: loaders live on; one epoch before the clock starts, then whole epochs. CPU time hardly
    depends on who else wants the cores; samples per second do.
Limit: the bare samples, which are the baseline, by CPU time: `x baseline` is the share. Above 1
    come loaders whose workers keep the memory of arrays, which a plain loop takes anew for each.
Losing cases: worker processes that hand large batches over pay for the transport, threads for the
    GIL.
Command: python benchmarks/bench_decode.py --json benchmarks/results/<date>-<machine>/decode.json
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tifffile
from torch.utils.data import Dataset

from _harness import Benchmark, Run, Work
from _passes import FEW, SLOW_TO_START, add_loaders
from fastloader import OMEArrowDataset

CELLS = Path(__file__).parents[1] / "data" / "nf1_cells.parquet"
SIDE = 512
BATCH_SIZE = 16
NUM_WORKERS = 2
NUM_IMAGES = 128
BARE = "bare samples"


class AugmentedTiffs(Dataset[npt.NDArray[np.float32]]):
    """TIFF files, read and augmented one by one."""

    def __init__(self, folder: Path) -> None:
        self.paths = [str(path) for path in sorted(folder.glob("*.tif"))]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> npt.NDArray[np.float32]:
        image = np.rot90(tifffile.imread(self.paths[index], maxworkers=1), index % 4)
        if index % 2:
            image = image[:, ::-1]
        image = image.astype(np.float32)
        low, high = np.percentile(image[::4, ::4], (1, 99.8))
        image = np.clip((image - low) / (high - low + 1e-6), 0, 1)
        return np.ascontiguousarray(image[None], dtype=np.float32)


def write_images(folder: Path, num_images: int) -> None:
    """Write different cuts of a canvas of cells."""
    cells = OMEArrowDataset(CELLS, dtype=None, progress=False).get_batch(range(100)).numpy()
    rows = [np.concatenate(list(np.roll(cells[:, 0], n, 0)[:10]), axis=1) for n in range(10)]
    canvas = np.concatenate(rows)
    rng = np.random.default_rng(0)
    for number in range(num_images):
        y, x = rng.integers(0, len(canvas) - SIDE, 2)
        image = np.ascontiguousarray(canvas[y : y + SIDE, x : x + SIDE])
        path = folder / f"{number:04}.tif"
        tifffile.imwrite(path, image, compression="zlib", predictor=True)


def bare_items(folder: Path) -> Run:
    """Make one sample after the other."""
    dataset = AugmentedTiffs(folder)

    def run() -> Work:
        nbytes = sum(dataset[index].nbytes for index in range(len(dataset)))
        return Work(samples=len(dataset), nbytes=nbytes)

    return run


def main() -> None:
    """Write the files and run everything."""
    benchmark = Benchmark(__doc__, prepares_at_once=True)
    smoke = benchmark.arguments().smoke
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, 2 * BATCH_SIZE if smoke else NUM_IMAGES)
        benchmark.add(BARE, bare_items, folder=folder)
        add_loaders(
            benchmark,
            AugmentedTiffs,
            batch_size=BATCH_SIZE,
            num_workers=(NUM_WORKERS,),
            shuffle=True,
            only=FEW if smoke else (),
            left_out=SLOW_TO_START,
            folder=folder,
        )
        benchmark.main(baseline=BARE, compared="cpu_seconds")


if __name__ == "__main__":
    main()
