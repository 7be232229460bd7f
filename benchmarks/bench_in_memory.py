"""How fast are shuffled batches of images that lie in memory?

Question: samples per second of whole epochs, where nothing has to be read or decoded.
Held fixed: the same images, shuffled batches of 256, one value of each image read, each batch
    dropped when the next one is asked for, as many threads as torch takes by itself. ``--images
    small`` are 60,000 uint8 images of 3x32x32 with labels, ``--images large`` 1,000 float32 images
    of 3x224x224.
Baseline: the fastest of stock `DataLoader`, as it comes and tuned, over a dataset that indexes
    tensors and over `TensorDataset`.
Method: all processes map one file of the images, privately, whose pages are in memory from the
    start: twenty times 600 MB are more than the machine has. Loaders live on; a run is as many
    epochs as fill half a second, one at least, after one before the clock starts: each follows
    others that have left the caches full of their own, and a single short epoch would measure that.
    Nobody reads each page of a large batch: what is lazy in the batches of workers costs their
    loaders nothing here. Hugging Face datasets gets the first 4,000 small images, or 498 large
    ones, in tables of its own.
Limit: the gather alone, into buffers that exist, in huge pages, as the loader gathers; its batches are read as all
    others are.
Losing cases: the dataset that indexes, one sample after the other, costs FastLoader what Python
    costs; only a dataset that it can read by whole batches is gathered.
Command: python benchmarks/bench_in_memory.py --images small --json in-memory-small.json
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, TensorDataset

from _harness import Benchmark, Run, Work
from _passes import FEW, add_loaders, count_images
from _peers import LOADERS, Epochs
from fastloader.tensors._buffers import BufferPool
from fastloader.tensors._gather import gather_rows
from fastloader.threads._crew import Crew, working_with

_BATCH_SIZE = 256
_RUN_SECONDS = 0.5
_PAGE_BYTES = 4096
_BYTES_OF_HUGGING_FACE = 300_000_000
_MOST_OF_HUGGING_FACE = 4_000
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
        fitting = _BYTES_OF_HUGGING_FACE // self.images[0].nbytes
        first = slice(min(fitting, _MOST_OF_HUGGING_FACE))
        return {"image": self.images[first].numpy(), "label": self.labels[first].numpy()}


def write_images(path: Path, images: str, smoke: bool) -> None:
    """Write random pixels."""
    shape, dtype = _layout(images, smoke)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    pixels.astype(dtype, copy=False).tofile(path)


def _layout(images: str, smoke: bool) -> tuple[tuple[int, ...], type[np.generic]]:
    if images == "small":
        return (600 if smoke else 60_000, 3, 32, 32), np.uint8
    return (8 if smoke else 1_000, 3, 224, 224), np.float32


def _map_images(path: Path, images: str, smoke: bool) -> tuple[torch.Tensor, torch.Tensor]:
    shape, dtype = _layout(images, smoke)
    pixels = torch.from_numpy(np.memmap(path, dtype, "c", shape=shape))
    pixels.reshape(-1)[:: _PAGE_BYTES // pixels.itemsize].sum()  # all of it is in memory now
    return pixels, torch.arange(len(pixels))


def make_dataset(path: Path, images: str, smoke: bool, adapted: bool = False) -> Any:
    """Return a dataset by hand, or the `TensorDataset` of the same images."""
    pixels, labels = _map_images(path, images, smoke)
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


def limit(path: Path, images: str, smoke: bool) -> Run:
    """The gather alone, into two buffers that exist: what no loader can beat."""
    pixels, labels = _map_images(path, images, smoke)
    allocate = BufferPool()  # in huge pages: small ones take longer to fill
    outs = [allocate((_BATCH_SIZE, *pixels.shape[1:]), pixels.dtype) for _ in range(2)]
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
    """Write the images and run the configurations for one kind of them."""
    benchmark = Benchmark(__doc__, prepares_at_once=True)
    benchmark.parser.add_argument("--images", choices=["small", "large"], default="small")
    arguments = benchmark.arguments()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pixels"
        write_images(path, arguments.images, arguments.smoke)
        _add_all(benchmark, path=path, images=arguments.images, smoke=arguments.smoke)
        benchmark.main(baseline="stock", compared="samples_per_second")


def _add_all(benchmark: Benchmark, **given: Any) -> None:
    shared: dict[str, Any] = {"batch_size": _BATCH_SIZE, "shuffle": True}
    only = (*FEW, *_SMOKE_PEERS) if given["smoke"] else ()
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


if __name__ == "__main__":
    main()
