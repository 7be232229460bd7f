"""How fast are shuffled batches of images that lie in memory?

Held fixed: the same tensors, shuffled batches of 256, one epoch a run, each batch dropped when
the next one is asked for. ``--images small`` are 60,000 uint8 images of 3x32x32 with labels,
``--images large`` 1,000 float32 images of 3x224x224.

Baseline: the fastest of stock `DataLoader` with 0, 1 and 2 workers (persistent, four batches
ahead) over a dataset that indexes the tensors, and over `TensorDataset`.
All run with torch's own number of threads.

FastLoader gets the `TensorDataset` and no option but batch size and shuffle. It also gets the
dataset that indexes, with 0 workers, of which it knows nothing. The limit is the gather alone, into
buffers that exist.

Command: ``python benchmarks/bench_in_memory.py --images small --json out.json``
"""

from typing import TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from _harness import Benchmark, Run, Work
from fastloader import FastLoader
from fastloader._gather import gather_rows

_BATCH_SIZE = 256


class _Indexed(Dataset[tuple[torch.Tensor, ...]]):
    """What people write by hand."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def _make_images(images: str, smoke: bool) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    if images == "small":
        shape, dtype = (600 if smoke else 60_000, 3, 32, 32), torch.uint8
    else:
        shape, dtype = (8 if smoke else 1_000, 3, 224, 224), torch.float32
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(dtype)
    return pixels, torch.arange(len(pixels))


_Pairs: TypeAlias = Dataset[tuple[torch.Tensor, ...]]


def _make_dataset(images: str, smoke: bool, adapted: bool) -> _Pairs:
    pixels, labels = _make_images(images, smoke)
    return TensorDataset(pixels, labels) if adapted else _Indexed(pixels, labels)


def _epochs_of(loader: DataLoader[tuple[torch.Tensor, ...]]) -> Run:
    def run() -> Work:
        samples = batches = nbytes = 0
        for images, labels in loader:
            samples += len(labels)
            batches += 1
            nbytes += images.nbytes + labels.nbytes
        return Work(samples=samples, batches=batches, nbytes=nbytes)

    return run


def stock(images: str, smoke: bool, num_workers: int, adapted: bool = False) -> Run:
    """Stock's loader, set up as well as it can be."""
    options = {"persistent_workers": True, "prefetch_factor": 4} if num_workers else {}
    return _epochs_of(
        DataLoader(
            _make_dataset(images, smoke, adapted),
            _BATCH_SIZE,
            shuffle=True,
            num_workers=num_workers,
            **options,  # type: ignore[arg-type]
        )
    )


def fast(images: str, smoke: bool, adapted: bool) -> Run:
    """FastLoader as it comes, or with samples one by one in this process."""
    dataset = _make_dataset(images, smoke, adapted)
    if adapted:
        return _epochs_of(FastLoader(dataset, _BATCH_SIZE, shuffle=True))
    return _epochs_of(FastLoader(dataset, _BATCH_SIZE, shuffle=True, num_workers=0))


def limit(images: str, smoke: bool) -> Run:
    """The gather alone, into two buffers that exist: what no loader can beat."""
    pixels, labels = _make_images(images, smoke)
    outs = [torch.empty((_BATCH_SIZE, *pixels.shape[1:]), dtype=pixels.dtype) for _ in range(2)]

    def run() -> Work:
        order = torch.randperm(len(pixels)).numpy()
        batches = nbytes = 0
        for start in range(0, len(pixels), _BATCH_SIZE):
            positions = order[start : start + _BATCH_SIZE]
            gathered = gather_rows(pixels, positions, outs[batches % 2][: len(positions)])
            batches += 1
            nbytes += gathered.nbytes + labels[positions].nbytes
        return Work(samples=len(pixels), batches=batches, nbytes=nbytes)

    return run


def main() -> None:
    """Run the configurations for one kind of images."""
    benchmark = Benchmark(__doc__)
    benchmark.parser.add_argument("--images", choices=["small", "large"], default="small")
    arguments = benchmark.arguments()
    given = {"images": arguments.images, "smoke": arguments.smoke}
    for num_workers in (0, 1, 2):
        name = f"stock, {num_workers} workers"
        benchmark.add(name, stock, group="stock", num_workers=num_workers, **given)
    benchmark.add(
        "stock, TensorDataset", stock, group="stock", num_workers=0, adapted=True, **given
    )
    benchmark.add("FastLoader", fast, adapted=True, **given)
    benchmark.add("FastLoader, samples one by one", fast, adapted=False, **given)
    benchmark.add("limit: gather alone", limit, **given)
    benchmark.main(baseline="stock")


if __name__ == "__main__":
    main()
