"""How long does a training loop wait for its loader, by format?

Question: samples trained per second, and the share of the time that the loop waits for a batch.
Held fixed: the images (made by make_data.py), as float32 tensors with a label, shuffled batches of
    32; a small CNN with AdamW: forward, backward, optimizer; torch on one thread (on a GPU where
    there is one). Epochs of 128 images, or of as many of the first ones as a way reads in 0.4 s.
Baseline: the fastest of stock DataLoader, tuned (workers live on, four batches ahead), over a
    dataset by hand: one image at a time by the format's own library, tables through ``as_py``.
Method: an epoch a run, with datasets and loaders that live on, one run before the clock starts. A
    wait begins when the loop asks for a batch and ends when it is there. ``gpu_busy_share`` is the
    time between events around each step on the device, over the wall time.
Limit: training on batches that lie in memory already.
Losing cases: none known; where the model is the limit, all come to the same rate.
Command: python benchmarks/bench_training.py --contents cells --workers 2 --json training-cells.json
"""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "examples"))

from _data import Images, add_arguments, find_chosen
from _harness import Benchmark, Run, Work
from _tracks import BY_HAND, add_reason, make_loader, open_dataset, some_of
from training import small_cnn

NUM_EPOCHS, NUM_CLASSES, NUM_IMAGES = 1, 3, 128
OURS = "OMEArrowDataset"


class Trainer:
    """Trains a model, and takes the time that it waits for batches."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(7)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = small_cnn(NUM_CLASSES).to(self._device)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._steps: list[tuple[Any, Any]] = []

    def train(self, loader: Iterable[Any]) -> Work:
        """Train for some epochs."""
        samples = batches = 0
        waited = 0.0
        self._steps.clear()
        start = time.perf_counter()
        for _ in range(NUM_EPOCHS):
            asked = time.perf_counter()
            for images, labels in loader:
                waited += time.perf_counter() - asked
                self._step(images, labels)
                samples += len(images)
                batches += 1
                asked = time.perf_counter()
            waited += time.perf_counter() - asked  # to learn that the epoch is over
        if self._steps:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        values = {"wait_share": waited / seconds}
        if self._steps:
            busy = sum(begin.elapsed_time(end) for begin, end in self._steps) / 1e3
            values["gpu_busy_share"] = busy / seconds
        return Work(samples=samples, batches=batches, values=values)

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True)
        if self._device.type == "cuda":
            make_event: Any = torch.cuda.Event
            begin, end = make_event(enable_timing=True), make_event(enable_timing=True)
            begin.record()
        loss: Any = nn.functional.cross_entropy(self._model(images), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        if self._device.type == "cuda":
            end.record()
            self._steps.append((begin, end))


def training(way: str, loader: str, images: Images, num_workers: int | None) -> Run:
    """Train with a loader."""
    trainer = Trainer()
    dataset = some_of(open_dataset(way, images), num_workers, NUM_IMAGES)
    made = make_loader(loader, dataset, num_workers)
    return lambda: trainer.train(made)


def training_alone(images: Images) -> Run:
    """Train on batches that lie in memory."""
    trainer = Trainer()
    dataset = some_of(open_dataset(OURS, images), 0, NUM_IMAGES)
    batches = list(make_loader("DataLoader", dataset, 0))
    return lambda: trainer.train(batches)


def main() -> None:
    """Compare the loaders for each format."""
    benchmark = Benchmark(__doc__, prepares_at_once=True, starts_quickly=True)
    add_arguments(benchmark.parser)
    benchmark.parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    arguments = benchmark.arguments()
    workers: list[int] = [0] if arguments.smoke else arguments.workers
    for images in find_chosen(arguments, ("Parquet",)):
        table = f"{images.content}, {images.format_name}"
        if add_reason(benchmark, images, table):
            continue
        rows: list[tuple[str, str, int | None]] = [
            (way, "DataLoader", number) for way in (BY_HAND, OURS) for number in workers
        ]
        for way, loader, number in [*rows, (OURS, "FastLoader", None)]:
            suffix = "" if number is None else f", {number} workers"
            benchmark.add(
                f"{table}: {way}, {loader}{suffix}", training, table=table,
                group=BY_HAND if way == BY_HAND else "", way=way, loader=loader,
                images=images, num_workers=number,
            )  # fmt: skip
        benchmark.add(
            f"{table}: limit", training_alone, table=table, is_limit=True, images=images
        )
    benchmark.main(baseline=BY_HAND, compared="samples_per_second")


if __name__ == "__main__":
    main()
