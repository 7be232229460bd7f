"""Where do worker threads read image files faster than worker processes, and does tune find out?

Question: seconds of an epoch over folders of TIFF and OME-Zarr images, which a dataset reads by
    tifffile and zarr one by one, with no workers, processes, threads, automatic settings, and those
    that `tune` finds in 30 s.
Held fixed: 48 tiles of real cells, 3 channels of 1024x1024 uint16 (deflated strips of 512 rows;
    Zstandard, chunks of 256x256), their order, batches of 4. Files are in the system's cache.
Baseline: the fastest of the settings with processes; that of a round is the one which was the
    fastest in all others.
Method: as for the reference workloads: a new process of each setting in each round, of which the
    middle one of three epochs counts. Threads share the interpreter: decompressors leave it, the
    Python around them does not. zarr decodes the chunks of an image by threads of its own, whoever
    reads.
Limit: the images, read by as many processes as there are cores, and dropped where they are.
Result: `x baseline` over 1 where threads are the faster workers; the row of tune names what it
    chose.
Losing cases: small images, where Python takes longer than the decompressor.
Command: python benchmarks/bench_thread_workers.py --json thread_workers.json
"""

import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
import torch
import zarr
from torch.utils.data import Dataset

from _harness import Benchmark, Run
from _passes import pass_over
from bench_image_folders import KINDS, write_images
from bench_reference_workloads import (
    EPOCHS_OF_A_PROCESS,
    read_until_settled,
    run_in_processes,
)
from fastloader import FastLoader
from fastloader.tuning import measure_settings

NAMES = ("TIFF deflate, large", "OME-Zarr 0.5, large")
NUM_IMAGES = 48
BATCH_SIZE = 4
FIXED: Mapping[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "1 process": {"num_workers": 1},
    "2 processes": {"num_workers": 2},
    "4 processes": {"num_workers": 4},
    "2 threads": {"num_workers": 2, "workers": "threads"},
    "4 threads": {"num_workers": 4, "workers": "threads"},
}


class ImageFiles(Dataset[torch.Tensor]):
    """Images of a folder, as people read them: float32 tensors, shape ``(3, 1024, 1024)``."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        path = self.paths[index]
        if path.suffix == ".tif":
            pixels = np.asarray(tifffile.imread(path))
        else:
            pixels = np.asarray(zarr.open_array(str(path / "0"), mode="r")[...])
        return torch.from_numpy(pixels.astype(np.float32))


def batches_of(dataset: ImageFiles) -> list[list[int]]:
    """Return the batches, whose order no loader knows before an epoch begins."""
    return [
        [*range(len(dataset))][i : i + BATCH_SIZE] for i in range(0, len(dataset), BATCH_SIZE)
    ]


def epochs(folder: Path, **options: Any) -> Run:
    """Read epochs with given settings."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # that is the question
    dataset = ImageFiles(folder)
    loader = FastLoader(dataset, batch_sampler=batches_of(dataset), **options)
    return pass_over(loader.__iter__)


def automatic(folder: Path) -> Run:
    """Read epochs with automatic settings, once their workers have been taken on."""
    dataset = ImageFiles(folder)
    loader = FastLoader(dataset, batch_sampler=batches_of(dataset))
    read_until_settled(loader)
    return pass_over(loader.__iter__)


def images_alone(folder: Path) -> Run:
    """Read the images in processes that live on, and drop them there."""
    dataset = ImageFiles(folder)
    return run_in_processes(dataset, batches_of(dataset))


def main() -> None:
    """Compare the settings for each kind of folder."""
    benchmark = Benchmark(__doc__, starts_quickly=True)
    is_smoke = benchmark.arguments().smoke
    with tempfile.TemporaryDirectory() as parent:
        for name in NAMES[: 1 if is_smoke else None]:
            count = BATCH_SIZE if is_smoke else NUM_IMAGES
            folder = write_images(Path(parent), name, KINDS[name], count)
            dataset = ImageFiles(folder)
            given: dict[str, Any] = {
                "table": name,
                "runs_in_process": EPOCHS_OF_A_PROCESS,
                "folder": folder,
            }
            found = measure_settings(
                dataset,
                batch_sampler=batches_of(dataset),
                budget_seconds=0.5 if is_smoke else 30.0,
                save=False,
            )
            label = f"{name}: tuned: {found.best.candidate.label()}"
            benchmark.add(label, epochs, settings=found.settings, **given)
            benchmark.add(f"{name}: automatic", automatic, **given)
            for setting, options in FIXED.items():
                group = "processes" if "process" in setting else ""
                benchmark.add(f"{name}: {setting}", epochs, group=group, **options, **given)
            benchmark.add(f"{name}: limit: images alone", images_alone, is_limit=True, **given)
        benchmark.main(baseline="processes", is_chosen_apart=True)


if __name__ == "__main__":
    main()
