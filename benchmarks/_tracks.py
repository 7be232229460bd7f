"""What the benchmarks of formats have in common: the ways to read images, and their limit."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Subset

from _by_hand import ByHand
from _data import Images
from _harness import Benchmark
from _measurement import cannot_run
from fastloader import FastLoader, OMEArrowDataset

__all__ = [
    "BATCH_SIZE", "BY_HAND", "add_reason", "copy_rows", "make_loader", "open_dataset", "read_pixels",
    "some_of",
]  # fmt: skip

_EPOCH_SECONDS = 0.4
_NUM_TRIED = 3

BATCH_SIZE = 32
BY_HAND = "by hand"
"""The group that others are compared with."""


def open_dataset(way: str, images: Images, **options: Any) -> Any:
    """Return the images by hand, or as `OMEArrowDataset`: float32 and a label."""
    if way == BY_HAND:
        return ByHand(images)
    return OMEArrowDataset(
        images.path, label_column=images.label_column, progress=False, **options
    )


def some_of(dataset: Any, num_workers: int | None, most: int | None = None) -> Any:
    """Return as many of the first images as can be read in less than half a second.

    A batch for each worker at the least: a way that takes a tenth of a second for an image would
    else take most of the time of a script. Rates are those of an image, whatever the number.

    Args:
        dataset: All images.
        num_workers: That will read.
        most: The most images; all by default.
    """
    start = time.perf_counter()
    for place in range(_NUM_TRIED):
        dataset[place]
    seconds = (time.perf_counter() - start) / _NUM_TRIED
    workers = num_workers or 1
    num_batches = max(workers, int(_EPOCH_SECONDS * workers / seconds / BATCH_SIZE))
    num_images = min(num_batches * BATCH_SIZE, len(dataset), most or len(dataset))
    return dataset if num_images == len(dataset) else Subset(dataset, range(num_images))


def make_loader(loader: str, dataset: Any, num_workers: int | None) -> Any:
    """Return a loader of shuffled batches; without a number of workers it chooses itself."""
    if loader == "FastLoader":
        chosen: dict[str, Any] = {} if num_workers is None else {"num_workers": num_workers}
        return FastLoader(dataset, BATCH_SIZE, shuffle=True, **chosen)
    opened = dataset.dataset if isinstance(dataset, Subset) else dataset
    tuned: dict[str, Any] = {
        "persistent_workers": True,
        "prefetch_factor": 4,
        "multiprocessing_context": opened.start_method if isinstance(opened, ByHand) else None,
    }
    return DataLoader(
        dataset,
        BATCH_SIZE,
        shuffle=True,
        num_workers=num_workers or 0,
        **(tuned if num_workers else {}),
    )


def read_pixels(images: Images) -> npt.NDArray[Any]:
    """Return all pixels in the type of the file."""
    dataset = OMEArrowDataset(images.path, dtype=None, progress=False)
    pixels: npt.NDArray[Any] = dataset.get_batch(range(len(dataset))).numpy()
    return pixels


def copy_rows(
    pixels: npt.NDArray[Any], order: npt.NDArray[np.int64], out: torch.Tensor
) -> Iterator[int]:
    """Convert rows to where a batch lies, and yield how many each batch has.

    It is what no loader can leave out once pixels are decoded: one read, one write.
    """
    target = out.numpy()
    for start in range(0, len(order), len(target)):
        rows = order[start : start + len(target)]
        for place, row in enumerate(rows):
            np.copyto(target[place], pixels[row])
        yield len(rows)


def add_reason(benchmark: Benchmark, images: Images, table: str) -> bool:
    """Add the reason why images cannot be had as a row of their table, if there is one."""
    if images.reason:
        benchmark.add(f"{table}: all", cannot_run, table=table, reason=images.reason)
    return bool(images.reason)
