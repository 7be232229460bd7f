"""How fast are shuffled batches of images that lie in memory?

Question: samples per second of whole epochs, where nothing has to be read or decoded.
Held fixed: the same images, shuffled batches of 256, one value of each image read, each batch dropped
    when the next one is asked for, as many threads as torch takes by itself. ``--images small``
    are 60,000 uint8 images of 3x32x32 with labels, ``--images large`` 1,000 float32 images of
    3x224x224.
Baseline: the fastest of stock `DataLoader`, as it comes and tuned, over a dataset that indexes
    tensors and over `TensorDataset`.
Method: loaders live on; a run is as many epochs as fill half a second, one at least, after one
    before the clock starts: each follows others that have left the caches full of their own, and
    a single epoch of 40 ms would measure that. Nobody reads each page of a large batch, which
    takes half as long as the quickest way to make one: what is lazy in the batches of workers
    costs their loaders nothing here. Hugging Face datasets gets the first 4,000 images, in tables
    of its own.
Limit: the gather alone, into buffers that exist, as the loader gathers; its batches are read as all
    others are.
Losing cases: the dataset that indexes, one sample after the other, costs FastLoader what Python
    costs; only a dataset that it can read by whole batches is gathered.
Command: python benchmarks/bench_in_memory.py --images small --json in-memory-small.json
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, TensorDataset

from _harness import Benchmark, Run, Work
from _passes import FEW, add_loaders, count_images
from _peers import LOADERS, Epochs
from fastloader.tensors._gather import gather_rows
from fastloader.threads._crew import Crew, working_with

_BATCH_SIZE = 256
_RUN_SECONDS = 0.5
_NUM_OF_HUGGING_FACE = 4_000
_SMOKE_PEERS = (
    "torchdata.nodes, threads", "torchdata.nodes, processes", "SPDL, threads", "Grain, threads",
)  # fmt: skip
"""Those that are imported quickly, or not installed, which is shown too."""


class _Indexed(Dataset[tuple[torch.Tensor, ...]]):
    """What people write by hand."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The first of the images, for a loader that makes tables of them."""
        first = slice(_NUM_OF_HUGGING_FACE)
        return {"image": self.images[first].numpy(), "label": self.labels[first].numpy()}


def _make_images(images: str, smoke: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if images == "small":
        shape, dtype = (600 if smoke else 60_000, 3, 32, 32), torch.uint8
    else:
        shape, dtype = (8 if smoke else 1_000, 3, 224, 224), torch.float32
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(dtype)
    return pixels, torch.arange(len(pixels))


def make_dataset(images: str, smoke: bool, adapted: bool = False) -> Any:
    """Return a dataset by hand, or the `TensorDataset` of the same images."""
    pixels, labels = _make_images(images, smoke)
    return TensorDataset(pixels, labels) if adapted else _Indexed(pixels, labels)


def epochs_of(
    loader: str,
    make_dataset: Any,
    batch_size: int,
    num_workers: int,
    shuffle: bool,
    **given: Any,
) -> Run:
    """Prepare a loader by its name, with torch's own number of threads."""
    return _filling(LOADERS[loader](make_dataset(**given), batch_size, num_workers, shuffle))


def _filling(epochs: Epochs) -> Run:
    """Return a run that is as many epochs as fill its time, one at least."""

    def run() -> Work:
        end = time.perf_counter() + _RUN_SECONDS
        works = [count_images(iter(epochs()))]
        while time.perf_counter() < end:
            works.append(count_images(iter(epochs())))
        samples, batches, nbytes = (
            sum(getattr(work, name) for work in works)
            for name in ("samples", "batches", "nbytes")
        )
        return Work(samples=samples, batches=batches, nbytes=nbytes)

    return run


def limit(images: str, smoke: bool) -> Run:
    """The gather alone, into two buffers that exist: what no loader can beat."""
    pixels, labels = _make_images(images, smoke)
    outs = [torch.empty((_BATCH_SIZE, *pixels.shape[1:]), dtype=pixels.dtype) for _ in range(2)]
    crew = Crew(torch.get_num_threads() - 1)

    def epoch() -> Iterator[Any]:
        order = np.random.default_rng(0).permutation(len(pixels))
        with working_with(crew):
            for batch, start in enumerate(range(0, len(pixels), _BATCH_SIZE)):
                positions = order[start : start + _BATCH_SIZE]
                gathered = gather_rows(pixels, positions, outs[batch % 2][: len(positions)])
                yield gathered, labels[positions]

    return _filling(epoch)


def main() -> None:
    """Run the configurations for one kind of images."""
    benchmark = Benchmark(__doc__, prepares_at_once=True)
    benchmark.parser.add_argument("--images", choices=["small", "large"], default="small")
    arguments = benchmark.arguments()
    given: dict[str, Any] = {"images": arguments.images, "smoke": arguments.smoke}
    shared: dict[str, Any] = {"batch_size": _BATCH_SIZE, "shuffle": True}
    only = (*FEW, *_SMOKE_PEERS) if arguments.smoke else ()
    add_loaders(
        benchmark,
        make_dataset,
        num_workers=(0, 2),
        prepare=epochs_of,
        only=only,
        **shared,
        **given,
    )
    for name, group in (("DataLoader, tuned", "stock"), ("FastLoader", "")):
        benchmark.add(
            f"{name}, TensorDataset", epochs_of, group=group, loader=name, num_workers=0,
            make_dataset=make_dataset, adapted=True, **shared, **given,
        )  # fmt: skip
    benchmark.add("limit: gather alone", limit, is_limit=True, **given)
    benchmark.main(baseline="stock", compared="samples_per_second")


if __name__ == "__main__":
    main()
