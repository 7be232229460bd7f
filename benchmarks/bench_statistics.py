"""How fast are channel statistics, next to one pass of `numpy.mean` over the same pixels?

Question: the time of mean and standard deviation of each channel, by how a dataset holds its
    images.
Held fixed: 96 MiB of images of 3 channels in memory, one thread.
Baseline: `numpy.mean` over one array: it reads every pixel once and gives one number.
Method: the dataset is that same array, a `TensorDataset` of it, or a list of arrays, one for each
    image. `numpy` for mean and standard deviation of each channel is there for comparison.
Limit: the baseline: `x baseline` is the share.
Losing cases: lists of small images, where Python's look at each takes as long as the sums save.
Command: python benchmarks/bench_statistics.py --size 224 --json benchmarks/results/<date>-<machine>/statistics-224.json
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from _harness import Benchmark, Run, Work
from fastloader.datasets import ChannelStatistics

DATASETS: dict[str, Callable[["np.ndarray[Any, Any]"], Any]] = {
    "one array": lambda images: images,
    "TensorDataset": lambda images: TensorDataset(torch.from_numpy(images)),
    "list of arrays": list,
}


def pixels(dtype: str, size: int, smoke: bool) -> "np.ndarray[Any, Any]":
    """Make images of 3 channels."""
    num_images = (3 if smoke else 96) * 2**20 // (3 * size * size * np.dtype(dtype).itemsize)
    shape = (num_images, 3, size, size)
    return np.random.default_rng(0).integers(0, 200, shape, np.dtype(dtype))


def mean(dtype: str, size: int, smoke: bool) -> Run:
    """Only the mean of all pixels."""
    images = pixels(dtype, size, smoke)

    def run() -> Work:
        images.mean()
        return Work(samples=len(images), nbytes=images.nbytes)

    return run


def statistics(dtype: str, size: int, kind: str, smoke: bool) -> Run:
    """Mean and standard deviation of each channel."""
    images = pixels(dtype, size, smoke)
    dataset = DATASETS[kind](images)
    torch.set_num_threads(1)

    def run() -> Work:
        ChannelStatistics.of(dataset)
        return Work(samples=len(images), nbytes=images.nbytes)

    return run


def standard_deviation(dtype: str, size: int, smoke: bool) -> Run:
    """What `numpy.std` takes for the same."""
    images = pixels(dtype, size, smoke)

    def run() -> Work:
        images.mean((0, 2, 3), dtype=np.float64)
        images.std((0, 2, 3), dtype=np.float64)
        return Work(samples=len(images), nbytes=images.nbytes)

    return run


if __name__ == "__main__":
    benchmark = Benchmark(__doc__)
    benchmark.parser.add_argument("--dtype", default="uint16", help="of the images")
    benchmark.parser.add_argument(
        "--size", type=int, default=224, help="pixels along each side"
    )
    arguments = benchmark.arguments()
    shared = {"dtype": arguments.dtype, "size": arguments.size, "smoke": arguments.smoke}
    benchmark.add("numpy.mean, one array", mean, **shared)
    for kind in DATASETS:
        benchmark.add(f"ChannelStatistics, {kind}", statistics, kind=kind, **shared)
    benchmark.add("numpy mean and std by channel", standard_deviation, **shared)
    benchmark.main(baseline="numpy.mean, one array")
