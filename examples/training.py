"""Trains a small CNN in a process of its own, and times what the training loop sees."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import DataLoader

from fastloader import FastLoader

__all__ = ["Loaders", "Result", "run_in_own_process", "small_cnn"]

SEED = 7

Loaders = tuple[DataLoader[Any], DataLoader[Any]]
"""One to train with, one to test with."""


@dataclass(frozen=True)
class Result:
    """What came out for one loader."""

    name: str
    samples_per_second: float
    """Trained samples over the wall time of all epochs."""
    first_batch_seconds: float
    """From opening the file to the first batch."""
    wait_share: float
    """Part of the training time spent waiting for a batch, 0 to 1."""
    peak_memory_bytes: int
    """Of the process and its workers, shared pages counted once, imports included."""
    test_accuracy: float
    explanation: str


def small_cnn(num_classes: int) -> nn.Module:
    """Return a network that looks at 3-channel images of any size, at a quarter of the resolution."""
    widths = [3, 16, 32, 64]
    layers: list[nn.Module] = [nn.AvgPool2d(4)]
    for before, after in pairwise(widths):
        convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], num_classes)]
    return nn.Sequential(*layers, *head)


def train_and_time(name: str, open_loaders: Callable[[], Loaders], num_epochs: int) -> Result:
    """Train, and time what the training loop sees."""
    torch.set_num_threads(1)  # workers, where there are some, have the other cores
    torch.manual_seed(SEED)
    model = small_cnn(num_classes=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    opened = time.perf_counter()
    train, test = open_loaders()
    first_batch_seconds = 0.0
    waited_seconds = 0.0
    num_samples = 0
    started = time.perf_counter()
    for _ in range(num_epochs):
        asked = time.perf_counter()
        for images, labels in train:
            arrived = time.perf_counter()
            waited_seconds += arrived - asked
            first_batch_seconds = first_batch_seconds or arrived - opened
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            num_samples += len(images)
            asked = time.perf_counter()
        waited_seconds += time.perf_counter() - asked  # to learn that the epoch is over
    trained_seconds = time.perf_counter() - started

    return Result(
        name=name,
        samples_per_second=num_samples / trained_seconds,
        first_batch_seconds=first_batch_seconds,
        wait_share=waited_seconds / trained_seconds,
        peak_memory_bytes=0,  # seen from outside
        test_accuracy=accuracy(model, test),
        explanation=train.explain() if isinstance(train, FastLoader) else "",
    )


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return the share of images that the model labels right."""
    model.eval()
    right = [(model(images).argmax(1) == labels) for images, labels in loader]
    return float(torch.cat(right).float().mean())


def run_in_own_process(name: str, open_loaders: Callable[[], Loaders], epochs: int) -> Result:
    """Train in a new process and watch its memory.

    Raises:
        SystemExit: If the process ends without a result.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    method = multiprocessing.get_start_method()
    process = context.Process(target=_work, args=(theirs, method, name, open_loaders, epochs))
    process.start()
    theirs.close()
    peak_bytes = 0
    try:
        while not ours.poll(0.1):
            peak_bytes = max(peak_bytes, tree_memory_bytes(process.pid))
        result: Result = ours.recv()
    except EOFError:
        raise SystemExit(f"{name}: the process ended early, see above.") from None
    finally:
        process.join()
    return replace(result, peak_memory_bytes=peak_bytes)


def _work(
    connection: Connection,
    start_method: str,
    name: str,
    open_loaders: Callable[[], Loaders],
    epochs: int,
) -> None:
    # A spawned process would spawn its workers, too: let them start as they usually do.
    multiprocessing.set_start_method(start_method, force=True)
    connection.send(train_and_time(name, open_loaders, epochs))
    connection.close()


def tree_memory_bytes(pid: int | None) -> int:
    """Return the memory of a process and its children, shared pages counted once."""
    total = 0
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            memory = process.memory_full_info()
        except psutil.Error:
            continue  # just ended
        total += getattr(memory, "pss", memory.rss)
    return total
