"""What does measuring itself cost a loader for each batch?

Question: the cost of the notes that ``loader.stats`` takes of a batch, next to that of the batch.
Held fixed: the loader, its dataset and the process.
Baseline: what a whole batch costs, in CPU seconds of this process.
Method: the notes are taken many times over, since the difference of passes with and without them is
    smaller than their spread.
Losing cases: a batch that is ready in a few microseconds, from data in memory, spends several per cent
    of them on the notes; anything that is read, decoded or copied does not notice.
Command: python benchmarks/bench_stats_overhead.py --json benchmarks/results/<date>-<machine>/stats.json
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

from _facts import run_facts
from fastloader import FastLoader
from fastloader.stats import LoaderStats
from fastloader.stats._pass_tally import FOLDED_AT_ONCE

BUDGET_SECONDS = 5e-6


class Images(Dataset[Any]):
    """Samples that cost about as much as a small decoded image."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and its number."""
        return torch.full((3, 64, 64), float(index)), index


def cpu_seconds_per_batch(loader: FastLoader[Any]) -> float:
    """Return what a batch of one pass costs this process, notes included."""
    num_batches = 0
    began = time.process_time()
    for _ in loader:
        num_batches += 1
    return (time.process_time() - began) / num_batches


def notes_cpu_seconds(batch: Any) -> float:
    """Return what the notes of one batch cost: two looks at the clock, a count, the sums."""
    num_notes = 50 * FOLDED_AT_ONCE
    tally = LoaderStats().begin_pass(time.perf_counter())
    indices = list(range(32))
    began = time.process_time()
    for _ in range(num_notes):
        started = time.perf_counter()
        tally.note(started, len(indices), batch)
    return (time.process_time() - began) / num_notes


def measure(loader: FastLoader[Any], num_runs: int) -> dict[str, float]:
    """Return medians over interleaved runs."""
    batch = next(iter(loader))
    cpu_seconds_per_batch(loader)  # workers, caches
    batches, notes = [], []
    for _ in range(num_runs):
        batches.append(cpu_seconds_per_batch(loader))
        notes.append(notes_cpu_seconds(batch))
    return {
        "batch_cpu_seconds": statistics.median(batches),
        "notes_cpu_seconds": statistics.median(notes),
        "share": statistics.median(notes) / statistics.median(batches),
        "num_runs": num_runs,
    }


def main() -> None:
    """Measure, print, and write the JSON file when asked.

    Raises:
        SystemExit: If the notes cost more than their budget.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--smoke", action="store_true", help="few batches: a check of the script"
    )
    parser.add_argument("--json", type=Path, help="where to write the results")
    arguments = parser.parse_args()
    scale, num_runs = (1, 2) if arguments.smoke else (4, 7)
    small = TensorDataset(torch.zeros(20_000 * scale, 8), torch.zeros(20_000 * scale))
    large = TensorDataset(torch.zeros(1024 * scale, 3, 64, 64))
    loaders = {
        "in memory, batches of 1 kB": FastLoader(small, 32),
        "in memory, batches of 1.5 MB": FastLoader(large, 32),
        "samples one by one, batches of 1.5 MB": FastLoader(
            Images(1024 * scale), 32, num_workers=0
        ),
        "the same, 2 workers": FastLoader(Images(1024 * scale), 32, num_workers=2),
    }
    results = {name: measure(loader, num_runs) for name, loader in loaders.items()}
    for name, result in results.items():
        print(
            f"{name:40s} batch {result['batch_cpu_seconds'] * 1e6:9.2f} us, "
            f"notes {result['notes_cpu_seconds'] * 1e6:6.2f} us ({result['share']:.1%})"
        )
    if arguments.json:
        document = {"question": (__doc__ or "").partition("\n")[0], **run_facts()}
        document |= {"smoke": arguments.smoke, "results": results}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    worst = max(result["notes_cpu_seconds"] for result in results.values())
    if not arguments.smoke and worst > BUDGET_SECONDS:
        raise SystemExit(f"The notes of a batch take {worst * 1e6:.1f} us, more than 5 us.")


if __name__ == "__main__":
    main()
