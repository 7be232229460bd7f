"""Is there a dataset for which FastLoader is slower than a stock DataLoader?

Question: time of a batch over all combinations of the cost of a sample, the size of a batch, the
    size of a sample and the number of workers.
Held fixed: dataset, order, number of workers; batches are taken and dropped.
Baseline: stock DataLoader with the same settings, in the same process, turn about.
Method: each cell is two loaders that live on; after a first pass each makes passes of a fixed
    number of batches in turn, and the quickest pass counts, because what disturbs only adds.
Result: a cell is "behind" if it takes under 0.95 of stock's rate where stock's batch takes over
    0.3 ms, or over 60 us more than stock elsewhere.
Losing cases: those printed as behind.
Command: python benchmarks/bench_cells.py --json cells.json
"""

import argparse
import itertools
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))

from _cost import tree_cost
from _facts import run_facts
from fastloader import FastLoader


class Cell(NamedTuple):
    """One combination."""

    item_milliseconds: float
    """Of computing, for each sample."""
    batch_size: int
    sample_bytes: int
    num_workers: int

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch."""
        return self.batch_size * self.sample_bytes


class Samples(Dataset[torch.Tensor]):
    """Samples of a size that take a time to compute."""

    def __init__(self, cell: Cell, length: int) -> None:
        self.length = length
        self.seconds = cell.item_milliseconds / 1e3
        self.samples = torch.zeros(8, cell.sample_bytes // 4)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                pass
        return self.samples[index % 8]


class Pass(NamedTuple):
    """What a batch of one pass took."""

    wall_microseconds: float
    cpu_microseconds: float


def measure(loader: Any, num_batches: int) -> Pass:
    """Take a pass over a loader."""
    before, started = tree_cost(), time.perf_counter()
    for _ in loader:
        pass
    wall = time.perf_counter() - started
    cpu = (tree_cost() - before).cpu_seconds
    return Pass(wall / num_batches * 1e6, cpu / num_batches * 1e6)


def run_cell(cell: Cell, *, seconds: float, num_passes: int) -> dict[str, Any]:
    """Compare the two loaders in one cell."""
    guess = 1e-5 + cell.batch_size * (3e-6 + cell.item_milliseconds / 1e3)
    guess += cell.batch_bytes / 1e9
    num_batches = max(4, min(2000, int(seconds / num_passes / 2 / guess)))
    dataset = Samples(cell, num_batches * cell.batch_size)
    options: dict[str, Any] = {"num_workers": cell.num_workers}
    if cell.num_workers:
        options |= {"persistent_workers": True}
    stock: Any = DataLoader(dataset, cell.batch_size, **options)
    fast: Any = FastLoader(dataset, cell.batch_size, **options)
    passes: dict[str, list[Pass]] = {"stock": [], "fast": []}
    for number in range(num_passes + 1):
        for name, loader in (("stock", stock), ("fast", fast)):
            one = measure(loader, num_batches)
            if number:  # the first starts workers
                passes[name].append(one)
    best = {
        name: [min(column) for column in zip(*found, strict=True)]
        for name, found in passes.items()
    }
    wall = {name: quickest[0] for name, quickest in best.items()}
    behind = wall["fast"] - wall["stock"]
    is_long = wall["stock"] > 300
    return {
        **cell._asdict(),
        "num_batches": num_batches,
        "stock_microseconds": wall["stock"],
        "fast_microseconds": wall["fast"],
        "stock_cpu_microseconds": best["stock"][1],
        "fast_cpu_microseconds": best["fast"][1],
        "ratio": wall["stock"] / wall["fast"],
        "is_behind": wall["stock"] / wall["fast"] < 0.95 if is_long else behind > 60,
    }


def cells(smoke: bool, workers: list[int]) -> list[Cell]:
    """Return the combinations that fit into a second a batch and 256 MB."""
    if smoke:
        return [Cell(0, 1, 4, 0), Cell(0.1, 8, 4096, 1)]
    found = [
        Cell(*values)
        for values in itertools.product(
            (0, 0.01, 0.1, 1, 10), (1, 8, 64, 512), (4, 4096, 65536, 1 << 20), workers
        )
    ]
    return [
        cell
        for cell in found
        if cell.batch_size * cell.item_milliseconds <= 700 and cell.batch_bytes <= 256 << 20
    ]


def main() -> None:
    """Run all cells and print those that are behind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--smoke", action="store_true", help="two small cells, no claims")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each cell, about")
    parser.add_argument("--passes", type=int, default=5, help="of each loader")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    results = []
    for cell in cells(arguments.smoke, arguments.workers):
        seconds, passes = (0.1, 1) if arguments.smoke else (arguments.seconds, arguments.passes)
        result = run_cell(cell, seconds=seconds, num_passes=passes)
        results.append(result)
        print(
            f"item {cell.item_milliseconds:>5} ms  batch {cell.batch_size:>3}  sample "
            f"{cell.sample_bytes:>7} B  workers {cell.num_workers}  stock "
            f"{result['stock_microseconds']:>10,.1f} us  FastLoader "
            f"{result['fast_microseconds']:>10,.1f} us  x {result['ratio']:.2f}  CPU x "
            f"{result['stock_cpu_microseconds'] / max(1e-3, result['fast_cpu_microseconds']):.2f}"
            f"{'  BEHIND' if result['is_behind'] and not arguments.smoke else ''}",
            flush=True,
        )
    num_behind = sum(result["is_behind"] for result in results)
    if arguments.smoke:
        print("smoke run: these numbers mean nothing.")
    else:
        print(f"{num_behind} of {len(results)} cells are behind.")
    if arguments.json:
        report = {
            "question": (__doc__ or "").partition("\n")[0],
            **run_facts(),
            "cells": results,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
