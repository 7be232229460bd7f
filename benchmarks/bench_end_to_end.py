"""How much of a model's own speed is left when its batches come from a loader?

Question: training steps a second on the device, next to the same steps on one batch that lies there
    already (the limit).
Held fixed: model, batches of 256, images in random order; a run is two epochs with the start of
    each, and its clock stops after the device has finished. Loader and model share the machine, as
    they do in training. Each loader draws its order from a generator of its own, as the only loader
    of a program would: those of ResNet-50 take turns in one process. `resnet-float32`,
    `resnet-uint8`: ResNet-50 in bfloat16, channels last, on 3x224x224 images in memory, whose
    dataset gives one at a time. `cnn-ome-arrow`: a small convolutional network on 3x100x100 uint16
    images of an OME-Arrow file, decoded once into shared memory; Python takes longer to start its
    kernels than the device to compute them. `cnn-ome-arrow-graph`: the same network with its step
    captured as a CUDA graph, which leaves the device as the limit, at less than ten times stock.
    `cnn-ome-arrow-narrow`: captured, with three quarters of the channels, which leaves more to the
    loader. An epoch takes each image four times; `--passes` makes it longer.
Baseline: stock DataLoader with pinned memory and persistent workers, its best over workers.
Method: `wait_share` is the part of the time that the training loop spent asking for batches,
    whether or not the device had work left meanwhile. `device_wait_share` is the part of the
    device's time, by its own clock, from the end of each step to the begin of the next: it stood
    still, or copied or gathered in line with the model. The share of the limit says what all of it
    has cost. `gap_seconds` is what the loop waited from the last batch of an epoch to the first of
    the next, `device_gap_seconds` the device's time between those steps. With `--waits` the loop
    waits for the device at each epoch's end, as one that prints its loss does, so that the device
    has nothing left to do meanwhile.
Limit: the model alone, on one batch that lies on the device.
Losing cases: none known; where the model is the limit, all come to the same rate. Furthest from the
    limit is `cnn-ome-arrow`, whose loop and loader take turns for the interpreter.
Command: python benchmarks/bench_end_to_end.py --workload resnet-float32
"""

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from copy import copy
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from _harness import Benchmark, CannotRun, Run, Work
from fastloader import FastLoader, OMEArrowDataset
from fastloader.writing import write_images

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_CLASSES = 10
NUM_EPOCHS = 2

Step: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]


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
    can_reside: bool = False
    """Whether the dataset makes whole batches, and so can be kept on the device."""
    is_captured: bool = False
    """Whether the step is a CUDA graph."""
    width: int = 32
    """Channels of the first layer of the small network."""


WORKLOADS = {
    "resnet-float32": Workload(torch.float32, 224, 2560, 2, (4, 8), (4, 8, 14)),
    "resnet-uint8": Workload(torch.uint8, 224, 2560, 2, (0, 4), ()),
    "cnn-ome-arrow": Workload(torch.uint16, 100, 8192, 4, (4, 8), (), can_reside=True),
}
WORKLOADS["cnn-ome-arrow-graph"] = WORKLOADS["cnn-ome-arrow"]._replace(is_captured=True)
WORKLOADS["cnn-ome-arrow-narrow"] = WORKLOADS["cnn-ome-arrow-graph"]._replace(width=24)


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
    if work.can_reside:
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
def make_step(task: str, smoke: bool) -> Step:
    """Return a training step; one model for all loaders.

    Raises:
        CannotRun: If it cannot be captured here.
    """
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    work = workload(task, smoke)
    is_small = smoke or work.can_reside
    net = _small_network(work.width) if is_small else _resnet()
    model = net.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scale = {torch.uint8: 1 / 255, torch.uint16: 1 / 4095}.get(work.dtype, 1)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        pixels = images.to(torch.bfloat16).to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(pixels * scale), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    if not work.is_captured:
        return step
    if DEVICE == "cpu":
        raise CannotRun("needs a CUDA device for the graph")
    return _Captured(step, *_first_batch(task, smoke))


class _Captured:
    """A step as a CUDA graph; its batches are copied to where the first one lies.

    The graph writes to the memory of model and optimizer, which only the step keeps.
    """

    def __init__(self, step: Step, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._step, self._images, self._labels = step, images, labels
        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # lets libraries choose and allocate what a graph cannot
                step(images, labels)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            step(images, labels)

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._images.copy_(images)
        self._labels.copy_(labels)
        self._graph.replay()


def _first_batch(task: str, smoke: bool) -> tuple[torch.Tensor, torch.Tensor]:
    loader = DataLoader(make_dataset(task, smoke), _batch_size(smoke), shuffle=True)
    images, labels = next(iter(loader))
    return images.to(DEVICE), labels.to(DEVICE)


def _batch_size(smoke: bool) -> int:
    return 8 if smoke else 256


def _small_network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, NUM_CLASSES),
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


class DeviceClock:
    """When the device came to the begins and ends of steps, by events of its own."""

    def __init__(self) -> None:
        self._marks: list[Any] = []
        self._ends: list[int] = []
        self.mark()

    def mark(self) -> None:
        """Note when the device has done all that was queued: begin and end of steps in turn."""
        if DEVICE == "cuda":
            event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)

    def note_end(self) -> None:
        """Note that an epoch has ended: another one may follow."""
        self._ends.append(len(self._marks) - 1)

    def values(self) -> dict[str, float]:
        """Return the times between steps, of a device that is done; nothing of other devices."""
        between = list(zip(self._marks[::2], self._marks[1::2], strict=False))
        waits = [ended.elapsed_time(began) / 1e3 for ended, began in between]
        if not waits:
            return {}
        share = sum(waits) * 1e3 / self._marks[0].elapsed_time(self._marks[-1])
        gaps = [waits[end // 2] for end in self._ends[:-1]]
        return {"device_wait_share": share} | _median("device_gap_seconds", gaps)


def _median(name: str, seconds: list[float]) -> dict[str, float]:
    return {name: statistics.median(seconds)} if seconds else {}


def train(epochs: Iterable[Iterable[Any]], step: Step, *, waits: bool = False) -> Work:
    """Take a step on each batch and wait for the device.

    Args:
        epochs: Their batches.
        step: Of training.
        waits: For the device at each epoch's end as well, in no time that counts as waiting for batches.
    """
    clock = DeviceClock()
    num_samples, lost, gaps, began = 0, 0.0, [], time.perf_counter()
    waited = 0.0
    for batches in epochs:
        asked = time.perf_counter()
        gap: float | None = lost
        for images, labels in batches:
            asked_for = time.perf_counter() - asked
            waited += asked_for
            if gap is not None:
                gaps.append(gap + asked_for)
                gap = None
            moved = (
                images.to(DEVICE, non_blocking=True),
                labels.to(DEVICE, non_blocking=True),
            )
            clock.mark()
            step(*moved)
            clock.mark()
            num_samples += len(images)
            asked = time.perf_counter()
        lost = time.perf_counter() - asked
        waited += lost
        clock.note_end()
        if waits:
            _wait()
    _wait()
    seconds = time.perf_counter() - began
    values = {"wait_share": waited / seconds, **clock.values()}
    return Work(samples=num_samples, values=values | _median("gap_seconds", gaps[1:]))


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def prepare(
    kind: str, task: str, workers: int | None, passes: int, waits: bool, smoke: bool
) -> Run:
    """Return epochs of training from a loader."""
    step, dataset = make_step(task, smoke), make_dataset(task, smoke)
    generator = torch.Generator()
    options: dict[str, Any] = {} if workers is None else {"num_workers": workers}
    options["sampler"] = RandomSampler(
        dataset,  # type: ignore[arg-type]
        num_samples=passes * len(dataset),  # type: ignore[arg-type]
        generator=generator,
    )
    options |= {"drop_last": True, "generator": generator}
    if kind == "stock":
        options |= {"persistent_workers": bool(workers), "pin_memory": DEVICE == "cuda"}
        loader: Any = DataLoader(dataset, _batch_size(smoke), **options)
    else:
        resident: Any = "device" if kind == "resident" else None
        loader = FastLoader(
            dataset, _batch_size(smoke), device=DEVICE, resident=resident, **options
        )
    return lambda: train(repeat(loader, NUM_EPOCHS), step, waits=waits)


def prepare_limit(task: str, passes: int, waits: bool, smoke: bool) -> Run:
    """Return as many training steps on one batch that is on the device."""
    step = make_step(task, smoke)
    batch = _first_batch(task, smoke)
    num_batches = passes * len(make_dataset(task, smoke)) // _batch_size(smoke)  # type: ignore[arg-type]
    epochs = NUM_EPOCHS * [repeat(batch, num_batches)]
    return lambda: train(map(copy, epochs), step, waits=waits)


def main() -> None:
    """Train on one workload with each loader."""
    benchmark = Benchmark(__doc__, max_bytes_per_second=1e12)
    benchmark.parser.add_argument("--workload", choices=WORKLOADS, default="resnet-float32")
    benchmark.parser.add_argument(
        "--passes", type=int, default=1, help="over the data, in an epoch"
    )
    benchmark.parser.add_argument("--waits", action="store_true", help="at each epoch's end")
    arguments = benchmark.arguments()
    task, smoke = arguments.workload, arguments.smoke
    chosen = workload(task, smoke)
    # Large models would not fit beside each other on the device. Of the others each has a process
    # of its own: stock's forked workers would share the pages of images that a device is to lock.
    benchmark.isolate = chosen.can_reside
    common = {
        "task": task,
        "passes": arguments.passes,
        "waits": arguments.waits,
        "smoke": smoke,
    }
    benchmark.add("limit: the model alone", prepare_limit, is_limit=True, **common)
    for workers in (2,) if smoke else chosen.stock_workers:
        name = f"stock, {workers} workers"
        benchmark.add(name, prepare, group="stock", kind="stock", workers=workers, **common)
    benchmark.add("FastLoader, automatic", prepare, kind="fast", workers=None, **common)
    if chosen.can_reside:
        benchmark.add("FastLoader, resident", prepare, kind="resident", workers=0, **common)
    for workers in () if smoke else chosen.fast_workers:
        benchmark.add(
            f"FastLoader, {workers} workers", prepare, kind="fast", workers=workers, **common
        )
    benchmark.main(baseline="stock", compared="samples_per_second")


if __name__ == "__main__":
    main()
