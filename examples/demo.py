"""Train a small CNN on real cells: through FastLoader, then through a stock DataLoader.

    python examples/demo.py [--rows N] [--epochs N] [--json FILE]

The same images, model, batches and epochs; each loader in a process of its own, one after the
other; the model computes on one core. The clock starts before a batch is asked for and stops when it is there.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from textwrap import indent
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Subset

from by_hand import HandWrittenCells, random_flips
from fastloader import FastLoader
from fastloader.datasets import Augment, ChannelStatistics, OMEArrowDataset, Standardize
from fastloader.transforms import RandomFlip
from report import draw, print_table
from training import Loaders, Result, run_in_own_process

DATA = Path(__file__).parent.parent / "data" / "nf1_cells.parquet"
OUTPUT = Path("demo-output")
BATCH_SIZE = 32


@dataclass(frozen=True)
class Task:
    """What every loader has to do."""

    path: Path
    train_rows: list[int]
    test_rows: list[int]
    statistics: ChannelStatistics
    """Mean and standard deviation of each channel over the training images."""


def with_fastloader(task: Task) -> Loaders:
    """Open the file with FastLoader: to train with, and to test with."""
    cells = OMEArrowDataset(task.path, image_column="image", label_column="label")
    standardized = Standardize(cells, task.statistics)
    flipped = Augment(standardized, RandomFlip())
    return (
        FastLoader(Subset(flipped, task.train_rows), BATCH_SIZE, shuffle=True),
        FastLoader(Subset(standardized, task.test_rows), BATCH_SIZE),
    )


def by_hand(task: Task, num_workers: int) -> Loaders:
    """Open the same file with a hand-written dataset and a stock `DataLoader`."""
    mean, std = task.statistics.mean.tolist(), task.statistics.std.tolist()
    read = partial(HandWrittenCells, task.path, mean=mean, std=std)
    load = partial(
        DataLoader, batch_size=BATCH_SIZE, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
    return (
        load(read(task.train_rows, augment=random_flips), shuffle=True),
        load(read(task.test_rows)),
    )


def compare(task: Task, num_epochs: int) -> list[Result]:
    """Train with each loader in turn."""
    num_workers = min(_usable_cpus(), 8)
    ways: dict[str, Callable[[], Loaders]] = {
        "FastLoader": partial(with_fastloader, task),
        "DataLoader": partial(by_hand, task, 0),
        f"DataLoader, {num_workers} workers": partial(by_hand, task, num_workers),
    }
    results = []
    for name, open_loaders in ways.items():
        print(f"Training {num_epochs} epochs through {name} ...", flush=True)
        results.append(run_in_own_process(name, open_loaders, num_epochs))
    return results


def prepare(num_rows: int | None, folder: Path) -> Task:
    """Choose the file and the rows, and measure the training images once for all loaders."""
    path = DATA
    table = pq.read_table(DATA)
    print(f"{DATA.name}: {len(table)} real images of cells.")
    if num_rows is not None:
        path = _repeated(table, num_rows, folder)
        print(f"Repeated to {num_rows} rows: the same images over and over.")
    split = pq.read_table(path, columns=["split"])["split"].to_pylist()
    train_rows = [row for row, part in enumerate(split) if part == "train"]
    test_rows = [row for row, part in enumerate(split) if part == "test"]
    print(f"{len(train_rows)} to train on, {len(test_rows)} to test.")

    cells = OMEArrowDataset(path, image_column="image", label_column="label")
    statistics = ChannelStatistics.of(cells, indices=train_rows)
    return Task(path, train_rows, test_rows, statistics)


def _repeated(table: pa.Table, num_rows: int, folder: Path) -> Path:
    path = folder / "cells.parquet"
    with pq.ParquetWriter(path, table.schema) as writer:
        for start in range(0, num_rows, len(table)):
            writer.write_table(table.slice(0, num_rows - start), row_group_size=64)
    return path


def write_picture(path: Path, results: Sequence[Result], title: str) -> None:
    """Draw two images of each class, and the columns of the table."""
    cells = OMEArrowDataset(DATA, image_column="image", label_column="label")
    labels = [int(cells[row][1]) for row in range(len(cells))]
    rows = [row for label in sorted(set(labels)) for row in _places(labels, label)[:2]]
    pixels, _ = cells.get_batch(rows)
    # DAPI is blue, GFP green, RFP red; one scale for all images, the brightest 1 % clipped.
    colour = pixels.flip(1).permute(0, 2, 3, 1)
    brightest = torch.quantile(colour.reshape(-1, 3), 0.99, dim=0)
    draw(
        path,
        results,
        title=title,
        images=(colour / brightest).clamp(0, 1).numpy(),
        captions=[cells.classes[labels[row]] for row in rows],
    )


def _places(labels: Sequence[int], label: int) -> list[int]:
    return [row for row, other in enumerate(labels) if other == label]


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # noqa: TID251 - where processes cannot be bound to CPUs


def _facts() -> dict[str, Any]:
    packages = ("fastloader", "torch", "numpy", "pyarrow")
    # Folders of this machine mean nothing on another one.
    arguments = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "examples/demo.py", *arguments]),
        "system": platform.platform(),
        "usable_cpus": _usable_cpus(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def main() -> None:
    """Run every loader, print one table and write it as a picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, help="repeat the images until there are this many")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    OUTPUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        task = prepare(arguments.rows, Path(folder))
        results = compare(task, arguments.epochs)

    print()
    print_table(results)
    print("\nWhat FastLoader chose, and why:\n")
    print(indent(results[0].explanation, "  "))
    title = f"A small CNN on {len(task.train_rows)} images of cells, {arguments.epochs} epochs"
    write_picture(OUTPUT / "demo.png", results, title)
    print(f"\nThe table as a picture: {OUTPUT / 'demo.png'}")
    if arguments.json:
        document = {**_facts(), "rows": arguments.rows, "epochs": arguments.epochs}
        document["results"] = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
