"""What does measuring itself cost a loader for each batch?

Question: the cost of the notes that ``loader.stats`` takes of a batch, next to that of the batch.
Held fixed: the loader, its dataset and the process.
Baseline: what a whole batch costs, in CPU seconds of this process.
Method: the loader's own iterator over a batch that is there already, with its notes and without
    them, in turns; the difference of whole passes would be smaller than their spread. Two readings
    of the clock, without which no time is known, and what it takes to keep the difference and to
    sum it up, are the floor: it is measured in a loop that does nothing else.
Limit: the floor, in the same run.
Losing cases: batches that are ready in a few microseconds, from small data in memory: they notice
    the notes most; what is read, decoded or copied does not.
Command: python benchmarks/bench_stats_overhead.py --json benchmarks/results/<date>-<machine>/stats.json
"""

import argparse
import json
import statistics
import time
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.utils.data import Dataset, TensorDataset

from _facts import run_facts
from fastloader import FastLoader
from fastloader.epochs import _epoch
from fastloader.epochs._iterator import LoaderIterator
from fastloader.stats._durations import Durations
from fastloader.streams._queue_state import QueueState

if TYPE_CHECKING:
    from collections.abc import Iterator

BUDGET_SECONDS = 5e-6
NUM_NOTES = 5 * 4096
"""Some times what is summed up at once."""
NUM_TURNS = 5
"""Of notes, for each pass over a loader: they take milliseconds."""


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


class SameBatch:
    """A stream of one batch again and again, which costs next to nothing."""

    def __init__(self, batch: Any) -> None:
        self._batches: Iterator[Any] = repeat(batch, NUM_NOTES)

    def __next__(self) -> Any:
        """Return the batch."""
        return next(self._batches)

    def queue(self) -> QueueState:
        """Return nothing under way."""
        return QueueState()

    def close(self) -> None:
        """Do nothing."""


class WithoutNotes(LoaderIterator):
    """The loader's iterator without its notes, and with all else that it does for a batch."""

    def __next__(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: At the end.
            RuntimeError: If the iterator would do more than this class does.
        """
        with self._taking:
            if self._is_closed:
                raise StopIteration
            if self._renew is not None:
                raise RuntimeError("A pass is told its epoch before its first batch.")
            try:
                batch = next(self._stream)
            except StopIteration:
                self.close()
                raise
            self._advance(to_end=False)
            self._num_yielded += 1
            if self._reported_length is not None or self._transform is not None:
                raise RuntimeError("Neither is what this script measures.")
            return batch


def iterator_cpu_seconds(
    loader: FastLoader[Any], batch: Any, kind: type[LoaderIterator]
) -> float:
    """Return what a batch costs in an iterator of the loader, if the making costs nothing."""
    with mock.patch.object(_epoch, "LoaderIterator", kind):
        iterator: Any = iter(loader)
    indices = list(range(32))
    iterator._stream, iterator._renew = SameBatch(batch), None  # noqa: SLF001
    iterator._advance = lambda *, to_end: indices  # noqa: ARG005, SLF001
    began = time.process_time()
    for _ in iterator:
        pass
    return (time.process_time() - began) / NUM_NOTES


def clock_cpu_seconds() -> float:
    """Return what two readings of the clock cost."""
    began = time.process_time()
    for _ in range(NUM_NOTES):
        time.perf_counter()
        time.perf_counter()
    both = time.process_time() - began
    began = time.process_time()
    for _ in range(NUM_NOTES):
        pass
    return (both - (time.process_time() - began)) / NUM_NOTES


def least_cpu_seconds() -> float:
    """Return what it costs to know how long each batch took, if nothing else is to be known."""
    waits: list[float] = []
    durations = Durations()
    began = time.process_time()
    for number in range(1, NUM_NOTES + 1):
        started = time.perf_counter()
        waits.append(time.perf_counter() - started)
        if not number % 4096:
            durations.add(waits)
            waits.clear()
    whole = time.process_time() - began
    began = time.process_time()
    for number in range(1, NUM_NOTES + 1):
        if not number % 4096:
            waits.clear()
    return (whole - (time.process_time() - began)) / NUM_NOTES


def measure(loader: FastLoader[Any], num_runs: int) -> dict[str, float]:
    """Return medians over interleaved runs."""
    batch = next(iter(loader))
    cpu_seconds_per_batch(loader)  # workers, caches
    quick: FastLoader[Any] = FastLoader([*range(32)], 32)  # type: ignore[arg-type]
    batches, notes, clocks, least = [], [], [], []
    for _ in range(num_runs):
        batches.append(cpu_seconds_per_batch(loader))
        for _ in range(NUM_TURNS):
            bare = iterator_cpu_seconds(quick, batch, WithoutNotes)
            notes.append(iterator_cpu_seconds(quick, batch, LoaderIterator) - bare)
            clocks.append(clock_cpu_seconds())
            least.append(least_cpu_seconds())
    low, _, high = statistics.quantiles(notes, n=4)
    return {
        "batch_cpu_seconds": statistics.median(batches),
        "notes_cpu_seconds": statistics.median(notes),
        "notes_cpu_seconds_low": low,
        "notes_cpu_seconds_high": high,
        "clock_cpu_seconds": statistics.median(clocks),
        "least_cpu_seconds": statistics.median(least),
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
            f"notes {result['notes_cpu_seconds'] * 1e6:5.2f} us ({result['share']:.2%}), of which "
            f"clock {result['clock_cpu_seconds'] * 1e6:.2f} us, floor "
            f"{result['least_cpu_seconds'] * 1e6:.2f} us"
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
