"""How much of a model's own speed is left when its batches come from a loader?

Question: training steps a second on the device, next to the same steps on one batch that lies
    there already (the limit).
Held fixed: model, batches of 256, images in random order; a run is one epoch and its clock stops
    after the device has finished. Loader and model share the machine, as they do in training.
    `resnet-float32`, `resnet-uint8`: ResNet-50 in bfloat16, channels last, on 3x224x224 images
    in memory, whose dataset gives one at a time. `cnn-ome-arrow`: a small convolutional network on
    3x100x100 uint16 images of an OME-Arrow file, decoded once into shared memory.
Baseline: stock DataLoader with pinned memory and persistent workers, its best over workers.
Method: `wait_seconds` is what the training loop spent asking for batches, whether or not the device
    had work left meanwhile; the share of the limit says what that has cost.
Losing cases: none known; where the model is the limit, all come to the same rate.
Command: python benchmarks/bench_end_to_end.py --workload resnet-float32
"""

import importlib
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from _harness import Benchmark, CannotRun, Run, Work
from fastloader import FastLoader, OMEArrowDataset
from fastloader.writing import write_images

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_CLASSES = 10


class Workload(NamedTuple):
    """A model and its data."""

    dtype: torch.dtype
    side: int
    num_images: int
    """That differ; an epoch takes each `num_repeats` times."""
    num_repeats: int
    stock_workers: tuple[int, ...]
    fast_workers: tuple[int, ...]
    """Besides what is chosen automatically."""


WORKLOADS = {
    "resnet-float32": Workload(torch.float32, 224, 2560, 2, (4, 8), (4, 8, 14)),
    "resnet-uint8": Workload(torch.uint8, 224, 2560, 2, (0, 4), ()),
    "cnn-ome-arrow": Workload(torch.uint16, 100, 8192, 4, (4, 8), ()),
}


class OneByOne(Dataset[Any]):
    """Images in memory whose loader knows nothing of them."""

    def __init__(self, images: torch.Tensor, num_repeats: int) -> None:
        self._images = images
        self._num_repeats = num_repeats

    def __len__(self) -> int:
        return len(self._images) * self._num_repeats

    def __getitem__(self, index: int) -> Any:
        return self._images[index % len(self._images)], index % NUM_CLASSES


@cache
def make_dataset(task: str, smoke: bool) -> Dataset[Any]:
    """Return the images of a workload, one copy for all that use it."""
    work = workload(task, smoke)
    generator = np.random.default_rng(0)
    shape = (work.num_images, 3, work.side, work.side)
    if task == "cnn-ome-arrow":
        pixels = generator.integers(0, 4096, shape, dtype=np.uint16)
        labels = [number % NUM_CLASSES for number in range(work.num_images)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "images.parquet"
            write_images(pixels, path, columns={"label": labels}, progress=False)
            return OMEArrowDataset(
                [path] * work.num_repeats, label_column="label", dtype=None, progress=False
            )
    images = torch.from_numpy(generator.integers(0, 256, shape, dtype=np.uint8))
    return OneByOne(images.to(work.dtype), work.num_repeats)


def workload(task: str, smoke: bool) -> Workload:
    """Return a workload, made small for a smoke run."""
    full = WORKLOADS[task]
    return full._replace(side=32, num_images=32, num_repeats=1) if smoke else full


@cache
def make_step(task: str, smoke: bool) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a training step; one model for all loaders."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    is_small = smoke or task == "cnn-ome-arrow"
    net = _small_network() if is_small else _resnet()
    model = net.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scale = {torch.uint8: 1 / 255, torch.uint16: 1 / 4095}.get(workload(task, smoke).dtype, 1)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        pixels = images.to(torch.bfloat16).to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(pixels * scale), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, NUM_CLASSES),
    )


def _resnet() -> nn.Module:
    for package, make in (
        ("torchvision.models", "resnet50"),
        ("timm.models.resnet", "resnet50"),
    ):
        try:
            net: nn.Module = getattr(importlib.import_module(package), make)()
        except ImportError:
            continue
        return net
    raise CannotRun("needs torchvision or timm for the model")


def train(batches: Iterable[Any], step: Callable[[torch.Tensor, torch.Tensor], None]) -> Work:
    """Take a step on each batch and wait for the device."""
    num_samples, waited, asked = 0, 0.0, time.perf_counter()
    for images, labels in batches:
        waited += time.perf_counter() - asked
        step(
            images.to(DEVICE, non_blocking=True),
            labels.to(DEVICE, non_blocking=True),
        )
        num_samples += len(images)
        asked = time.perf_counter()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return Work(samples=num_samples, values={"wait_seconds": waited})


def prepare(kind: str, task: str, workers: int | None, smoke: bool) -> Run:
    """Return one epoch of training from a loader."""
    step, dataset = make_step(task, smoke), make_dataset(task, smoke)
    batch_size = 8 if smoke else 256
    options: dict[str, Any] = {} if workers is None else {"num_workers": workers}
    if kind == "stock":
        options |= {"persistent_workers": bool(workers), "pin_memory": DEVICE == "cuda"}
        loader: Any = DataLoader(dataset, batch_size, shuffle=True, drop_last=True, **options)
    else:
        loader = FastLoader(
            dataset, batch_size, shuffle=True, drop_last=True, device=DEVICE, **options
        )
    return lambda: train(loader, step)


def prepare_limit(task: str, smoke: bool) -> Run:
    """Return as many training steps on one batch that is on the device."""
    step, dataset = make_step(task, smoke), make_dataset(task, smoke)
    batch_size = 8 if smoke else 256
    images, labels = next(iter(DataLoader(dataset, batch_size, shuffle=True)))
    batch = images.to(DEVICE), labels.to(DEVICE)
    num_batches = len(dataset) // batch_size  # type: ignore[arg-type]
    return lambda: train(repeat(batch, num_batches), step)


def main() -> None:
    """Train on one workload with each loader."""
    # One process: models of several would not fit beside each other on the device.
    benchmark = Benchmark(__doc__, isolate=False, max_bytes_per_second=1e12)
    benchmark.parser.add_argument("--workload", choices=WORKLOADS, default="resnet-float32")
    arguments = benchmark.arguments()
    task, smoke = arguments.workload, arguments.smoke
    chosen = workload(task, smoke)
    common = {"task": task, "smoke": smoke}
    benchmark.add("limit: the model alone", prepare_limit, is_limit=True, **common)
    for workers in (2,) if smoke else chosen.stock_workers:
        name = f"stock, {workers} workers"
        benchmark.add(name, prepare, group="stock", kind="stock", workers=workers, **common)
    benchmark.add("FastLoader, automatic", prepare, kind="fast", workers=None, **common)
    for workers in () if smoke else chosen.fast_workers:
        benchmark.add(
            f"FastLoader, {workers} workers", prepare, kind="fast", workers=workers, **common
        )
    benchmark.main(baseline="stock", compared="samples_per_second")


if __name__ == "__main__":
    main()
