"""How fast are single images, by format: in order, at random, the first one, the same one again?

Question: images per second that a dataset gives, and the time from opening it to its first image.
Held fixed: the images (made by make_data.py), as float32 tensors with a label; the file's pages are
    in memory from the warm-up on; 64 images in order, 64 at random, one 32 times, or as many of
    them (three or more) as a way can give in a quarter of a second.
Baseline: by hand: one image at a time by the format's own library, tables through ``as_py``.
Method: a run opens the dataset and takes all kinds of access one after the other. Ours decodes
    everything when it is opened (so that the first image comes later) or, without a cache, each
    image when asked for; "batches" asks for 32 images at once. Ratios and shares are those of
    random access. By hand, Parquet and Arrow tables are read whole when they are opened.
Limit: to convert pixels that lie in memory. "bare decoding" undoes the compression of single images
    whose bytes lie in memory, which a way without a cache cannot leave out.
Losing cases: the first image of a dataset that decodes everything first. Without a cache, single
    images of Parquet and Arrow files, where a page or a batch of rows has to be decoded for each,
    and of DuckDB, which reads a group of rows.
Command: python benchmarks/bench_items.py --contents cells --json items-cells.json
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from _bare_decoding import bare_decoder
from _data import Images, add_arguments, find_chosen
from _harness import Benchmark, Run, Work
from _tracks import BATCH_SIZE, BY_HAND, add_reason, copy_rows, open_dataset, read_pixels

NUM_IMAGES, NUM_REPEATS, FEWEST = 64, 32, 3
MOST_SECONDS = 0.25
WAYS: dict[str, dict[str, Any]] = {
    BY_HAND: {},
    "OMEArrowDataset": {},
    "OMEArrowDataset, no cache": {"preload": False, "cache": "none"},
}


def _orders(num_images: int) -> dict[str, list[int]]:
    count = min(NUM_IMAGES, num_images)
    return {
        "sequential": list(range(count)),
        "random": np.random.default_rng(3).permutation(num_images)[:count].tolist(),
        "repeated": [num_images // 2] * NUM_REPEATS,
    }


def items(way: str, images: Images, in_batches: bool = False) -> Run:
    """Open a dataset and take its images."""
    torch.set_num_threads(1)
    orders = _orders(images.num_images)

    def run() -> Work:
        start = time.perf_counter()
        dataset = open_dataset(way.partition(",")[0], images, **WAYS[way])
        dataset[0]
        values = {"first_seconds": time.perf_counter() - start}
        for name, order in orders.items():
            if in_batches:
                values[f"{name}_samples_per_second"] = _rate(
                    dataset.get_batch, list(_pieces(order)), BATCH_SIZE
                )
            else:
                values[f"{name}_samples_per_second"] = _rate(dataset.__getitem__, order)
        return Work(values=values)

    return run


def _pieces(order: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(order), BATCH_SIZE):
        yield order[first : first + BATCH_SIZE]


def _rate(read: Callable[[Any], Any], requests: Sequence[Any], num_images: int = 1) -> float:
    """Return the images read in a second, of as many requests as there is time for."""
    start = time.perf_counter()
    done = 0
    for request in requests:
        read(request)
        done += 1
        if done >= FEWEST and time.perf_counter() - start > MOST_SECONDS:
            break
    return done * num_images / (time.perf_counter() - start)


def decode_alone(images: Images) -> Run:
    """Undo the compression of single images whose bytes lie in memory, and convert them."""
    torch.set_num_threads(1)
    decode = bare_decoder(images, NUM_IMAGES)
    orders = {name: [place % NUM_IMAGES for place in order]
              for name, order in _orders(images.num_images).items()}  # fmt: skip

    def run() -> Work:
        values = {
            f"{name}_samples_per_second": _rate(
                lambda place: torch.from_numpy(decode(place).astype(np.float32)), order
            )
            for name, order in orders.items()
        }
        return Work(values=values)

    return run


def convert_alone(images: Images) -> Run:
    """Convert pixels that lie in memory to where they are wanted."""
    pixels = read_pixels(images)
    out = torch.empty((1, *pixels.shape[1:]))
    orders = {name: np.array(order) for name, order in _orders(len(pixels)).items()}

    def run() -> Work:
        values = {}
        for name, order in orders.items():
            start = time.perf_counter()
            done = sum(copy_rows(pixels, order, out))
            seconds = time.perf_counter() - start
            values[f"{name}_samples_per_second"] = done / seconds
        return Work(samples=sum(map(len, orders.values())), values=values)

    return run


def main() -> None:
    """Compare the ways for each format."""
    benchmark = Benchmark(__doc__, prepares_at_once=True, starts_quickly=True)
    add_arguments(benchmark.parser)
    for images in find_chosen(benchmark.arguments(), ("Parquet",)):
        table = f"{images.content}, {images.format_name}"
        if add_reason(benchmark, images, table):
            continue
        for way in WAYS:
            benchmark.add(f"{table}: {way}", items, table=table, way=way, images=images,
                          group=BY_HAND if way == BY_HAND else "")  # fmt: skip
        benchmark.add(f"{table}: OMEArrowDataset, batches", items, table=table,
                      way="OMEArrowDataset", images=images, in_batches=True)  # fmt: skip
        benchmark.add(f"{table}: bare decoding", decode_alone, table=table, images=images)
        benchmark.add(
            f"{table}: limit", convert_alone, table=table, is_limit=True, images=images
        )
    benchmark.main(baseline=BY_HAND, compared="random_samples_per_second")


if __name__ == "__main__":
    main()
