"""How fast do loaders give batches, by format and number of workers?

Question: samples per second once a loader runs, the time from a new loader to its first batch,
    and what is lost between two epochs.
Held fixed: the images (made by make_data.py), as float32 tensors with a label, shuffled batches of
    32; datasets are open; one thread of torch. All images, or as many of the first ones as a way
    reads in 0.4 s: rates are those of an image.
Baseline: the fastest of stock DataLoader, tuned (workers live on, four batches ahead), over a
    dataset by hand: one image at a time by the format's own library, tables through ``as_py``.
Method: a run makes a loader, takes one epoch (first batch and warm-up) and then another, which
    is the steady rate; wall and CPU seconds count all of it, the end of the workers too.
Limit: to convert pixels that lie in memory into a batch that exists.
Losing cases: short epochs by many workers, on few cores: starting them takes longer than reading.
Command: python benchmarks/bench_loaders.py --contents cells --workers 2 --json loaders-cells.json
"""

import statistics
import time
from typing import Any

import numpy as np
import torch

from _data import Images, add_arguments, find_chosen
from _harness import Benchmark, Run, Work
from _passes import count
from _tracks import (
    BATCH_SIZE,
    BY_HAND,
    add_reason,
    copy_rows,
    make_loader,
    open_dataset,
    read_pixels,
    some_of,
)

NUM_EPOCHS = 1
OURS = "OMEArrowDataset"


def epochs(way: str, loader: str, images: Images, num_workers: int | None) -> Run:
    """Take epochs of a loader that is made anew for each run."""
    torch.set_num_threads(1)
    dataset = some_of(open_dataset(way, images), num_workers)

    def run() -> Work:
        start = time.perf_counter()
        made = make_loader(loader, dataset, num_workers)
        batches = iter(made)
        samples = len(next(batches)[0])
        values = {"first_batch_seconds": time.perf_counter() - start}
        samples += count(batches).samples
        gaps = []
        ended = steady = time.perf_counter()
        for _ in range(NUM_EPOCHS):
            batches = iter(made)
            samples += len(next(batches)[0])
            gaps.append(time.perf_counter() - ended)
            samples += count(batches).samples
            ended = time.perf_counter()
        values["epoch_gap_seconds"] = statistics.median(gaps)
        steady_samples = samples * NUM_EPOCHS / (NUM_EPOCHS + 1)
        values["steady_samples_per_second"] = steady_samples / (ended - steady)
        return Work(samples=samples, batches=samples // BATCH_SIZE, values=values)

    return run


def convert_alone(images: Images) -> Run:
    """Convert pixels that lie in memory into a batch that exists."""
    pixels = read_pixels(images)
    out = torch.empty((BATCH_SIZE, *pixels.shape[1:]))
    order = np.random.default_rng(0).permutation(len(pixels))

    def run() -> Work:
        start = time.perf_counter()
        samples = sum(sum(copy_rows(pixels, order, out)) for _ in range(NUM_EPOCHS))
        rate = samples / (time.perf_counter() - start)
        return Work(samples=samples, values={"steady_samples_per_second": rate})

    return run


def main() -> None:
    """Compare the loaders for each format."""
    benchmark = Benchmark(__doc__, prepares_at_once=True, starts_quickly=True)
    add_arguments(benchmark.parser)
    benchmark.parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    arguments = benchmark.arguments()
    workers: list[int] = [1] if arguments.smoke else arguments.workers
    for images in find_chosen(arguments, ("TIFF",)):
        table = f"{images.content}, {images.format_name}"
        if add_reason(benchmark, images, table):
            continue

        def add(
            way: str, loader: str, number: int | None, table: str = table, **given: Any
        ) -> None:
            suffix = "" if number is None else f", {number} workers"
            benchmark.add(f"{table}: {way}, {loader}{suffix}", epochs, table=table, way=way,
                          loader=loader, num_workers=number, **given)  # fmt: skip

        for number in workers:
            add(BY_HAND, "DataLoader", number, images=images, group=BY_HAND)
        for number in workers:
            add(OURS, "DataLoader", number, images=images)
        add(OURS, "FastLoader", None, images=images)
        for number in [] if arguments.smoke else workers:
            add(OURS, "FastLoader", number, images=images)
        benchmark.add(
            f"{table}: limit", convert_alone, table=table, is_limit=True, images=images
        )
    benchmark.main(baseline=BY_HAND, compared="steady_samples_per_second")


if __name__ == "__main__":
    main()
