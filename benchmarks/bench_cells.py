"""Is there a dataset for which FastLoader is slower than a stock DataLoader?

Question: time of a batch over all combinations of the cost of a sample, the size of a batch, the
    size of a sample and the number of workers.
Held fixed: dataset, order, number of workers, which live on; batches are taken and dropped.
Baseline: stock DataLoader with the same settings, in the same process, turn about.
Method: each cell is two loaders. After a pass to warm up, or as many as FastLoader takes to see that a dataset read
    here does not draw (it seeds the generators for each of its first 256 batches), they make short
    passes in turn, and each pair of passes is compared; pairs go on until the middle one is known to lie on one side of
    the bound (an interval of 99 % or more, from the ranks of the pairs: it is asked after each of them, for each
    of 162 cells), or the cell's time is over.
    Without workers a pass is timed as a whole. With workers its clock starts when the batches
    have come that were made ahead, and stops as many before the last, so that only what goes on for
    hours is compared: a thread of stock's workers sends a batch while they compute the next one,
    milliseconds later, but the last ones at once.
    With ``--first-batches`` there are only loaders without workers, a new one for each pass, which is timed
    from its first batch on and has 100 more at most: those around which generators are seeded.
Result: a cell is "behind" if it has under 0.95 of stock's rate where stock's batch takes over
    0.3 ms, or takes over 60 us more than stock elsewhere; "open" if it may be either.
Limit: none: what is asked is who is behind, and each cell has a limit of its own.
Losing cases: those printed. Batches that compute for over 0.1 s are left out, since what a loader
    adds does not show in them: ``--longest 1`` takes them in.
Command: python benchmarks/bench_cells.py --json cells.json
"""

import argparse
import itertools
import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))

from _cost import tree_cost
from _cut_off import told_of_signals
from _facts import run_facts
from fastloader import FastLoader

LONG_MICROSECONDS = 300
"""Of stock's batch, from which on the ratio counts."""
LEAST_RATIO = 0.95
MOST_BEHIND_MICROSECONDS = 60
PASS_SECONDS = 0.05
"""About; at least 4 batches."""
WARM_UP_SAMPLES = 1200
"""Of each loader without workers: a dataset that has drawn nothing for 1024 samples is left alone from then on..."""
SAMPLES_OF_TINY_BATCH = 4
"""... of which each batch counts as so many at least."""
FIRST_BATCHES = 100
"""Of a new loader that are timed at most."""
AHEAD = 2
"""Batches that are made for each worker before the loader is asked for one..."""
AHEAD_TINY = 8
"""... and that FastLoader may have made, if they are tiny and quick."""
FEWEST_PAIRS = 8
"""Whose least and largest are an interval of 99 % for the one in the middle."""


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

    @property
    def is_tiny(self) -> bool:
        """Whether batches are as small and quick as those that are made many at once."""
        return self.batch_bytes <= 1 << 16 and self.computing_seconds < 1e-3

    @property
    def computing_seconds(self) -> float:
        """Of a batch."""
        return self.batch_size * self.item_milliseconds / 1e3


class Samples(Dataset[torch.Tensor]):
    """Samples of a size that take a time to compute."""

    def __init__(self, cell: Cell) -> None:
        self.length = 0
        """Decides how many batches a pass has."""
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


class Pair(NamedTuple):
    """Passes of both loaders, one right after the other."""

    stock: Pass
    fast: Pass

    @property
    def ratio(self) -> float:
        """Of FastLoader's rate to stock's."""
        return self.stock.wall_microseconds / self.fast.wall_microseconds

    @property
    def behind_microseconds(self) -> float:
        """How much longer FastLoader's batch took."""
        return self.fast.wall_microseconds - self.stock.wall_microseconds


def _choose_length(cell: Cell) -> int:
    guess = 1e-5 + cell.batch_size * 3e-6 + cell.batch_bytes / 4e9
    guess += cell.computing_seconds / max(1, cell.num_workers)
    if cell.num_workers:
        guess += 2e-4
    return max(4, min(400, round(PASS_SECONDS / guess)))


class Contest:
    """The two loaders of a cell.

    Args:
        cell: The combination.
        are_new: Whether each pass is by a new loader, whose first batch is not timed.
    """

    def __init__(self, cell: Cell, *, are_new: bool = False) -> None:
        self._dataset = Samples(cell)
        self.num_batches = _choose_length(cell)
        if are_new:
            self.num_batches = min(FIRST_BATCHES, self.num_batches)
        """That are timed in a pass."""
        options: dict[str, Any] = {
            "batch_size": cell.batch_size,
            "num_workers": cell.num_workers,
        }
        if cell.num_workers:
            options["persistent_workers"] = True
        self._options = options
        samples_of_pass = self.num_batches * max(SAMPLES_OF_TINY_BATCH, cell.batch_size)
        self.num_warm_up_passes = (
            1 if cell.num_workers or are_new else -(-WARM_UP_SAMPLES // samples_of_pass)
        )
        """Which start workers, and show whether the dataset draws."""
        self._num_ahead = (AHEAD_TINY if cell.is_tiny else AHEAD) * cell.num_workers + are_new
        # Before workers get their copies of it.
        num_in_all = self.num_batches + 2 * self._num_ahead
        self._dataset.length = num_in_all * cell.batch_size
        kept = () if are_new else (DataLoader, FastLoader)
        self._kept = {kind: self._make(kind) for kind in kept}

    def _make(self, kind: type[DataLoader[Any]]) -> DataLoader[Any]:
        return kind(self._dataset, **self._options)

    def measure(self, kind: type[DataLoader[Any]]) -> Pass:
        """Take a pass over a loader of a kind."""
        loader = self._kept.get(kind) or self._make(kind)
        before, came = tree_cost(), [time.perf_counter()]
        came += [time.perf_counter() for _ in loader]
        ended = time.perf_counter()
        cpu = (tree_cost() - before).cpu_seconds
        first = self._num_ahead
        last = came[first + self.num_batches] if first else ended
        return Pass((last - came[first]) / self.num_batches * 1e6, cpu / (len(came) - 1) * 1e6)

    def measure_pair(self, number: int) -> Pair:
        """Take a pass over each, every other time the other way around."""
        if number % 2:
            fast = self.measure(FastLoader)
            return Pair(self.measure(DataLoader), fast)
        return Pair(self.measure(DataLoader), self.measure(FastLoader))


def judge(pairs: list[Pair]) -> str:
    """Return ``"behind"``, ``"not behind"``, or ``"open"``."""
    stock = statistics.median(pair.stock.wall_microseconds for pair in pairs)
    if stock > LONG_MICROSECONDS:
        margins = sorted(pair.ratio - LEAST_RATIO for pair in pairs)
    else:
        margins = sorted(MOST_BEHIND_MICROSECONDS - p.behind_microseconds for p in pairs)
    if len(pairs) < FEWEST_PAIRS:
        return "open"
    # The median of what they are drawn from lies between two of them, unless a coin thrown as
    # often shows one side that often: 0.8 % for 0 of 8, and no more for the ranks taken here.
    place = _rank_below(len(margins))
    if margins[place] > 0:
        return "not behind"
    return "behind" if margins[-1 - place] < 0 else "open"


def _rank_below(count: int) -> int:
    """Return how many of `count` may lie on the wrong side, at 0.8 % for both sides."""
    share, ways, rank = 0.0, 1, 0
    while True:
        share += ways / 2**count
        if 2 * share > 0.008:
            return max(0, rank - 1)
        rank += 1
        ways = ways * (count - rank + 1) // rank


def run_cell(
    cell: Cell, *, seconds: float, fewest_pairs: int, are_new: bool = False
) -> dict[str, Any]:
    """Compare the two loaders in one cell."""
    contest = Contest(cell, are_new=are_new)
    for _ in range(contest.num_warm_up_passes):
        contest.measure_pair(0)
    pairs: list[Pair] = []
    verdict = "open"
    until = time.monotonic() + seconds
    while len(pairs) < fewest_pairs or (verdict == "open" and time.monotonic() < until):
        pairs.append(contest.measure_pair(len(pairs)))
        verdict = judge(pairs)
    return {
        **cell._asdict(),
        "num_batches": contest.num_batches,
        "pairs": [[*pair.stock, *pair.fast] for pair in pairs],
        "stock_microseconds": _median(pair.stock.wall_microseconds for pair in pairs),
        "fast_microseconds": _median(pair.fast.wall_microseconds for pair in pairs),
        "stock_cpu_microseconds": _mean(pair.stock.cpu_microseconds for pair in pairs),
        "fast_cpu_microseconds": _mean(pair.fast.cpu_microseconds for pair in pairs),
        "ratio": _median(pair.ratio for pair in pairs),
        "behind_microseconds": _median(pair.behind_microseconds for pair in pairs),
        "verdict": verdict,
    }


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def _mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 3)  # workers' time comes in ticks


def cells(*, smoke: bool, workers: list[int], longest_seconds: float) -> list[Cell]:
    """Return the combinations that fit into the longest batch and 256 MB."""
    if smoke:
        return [Cell(0, 1, 4, 0), Cell(0.1, 8, 4096, 1)]
    found = [
        Cell(item, size, sample, count)
        for count, item, size, sample in itertools.product(
            workers, (0, 0.01, 0.1, 1, 10), (1, 8, 64, 512), (4, 4096, 65536, 1 << 20)
        )
    ]
    return [
        cell
        for cell in found
        if cell.computing_seconds <= longest_seconds and cell.batch_bytes <= 256 << 20
    ]


def describe(result: dict[str, Any]) -> str:
    """Return a cell as a line."""
    cpu_ratio = result["stock_cpu_microseconds"] / max(1e-3, result["fast_cpu_microseconds"])
    return (
        f"item {result['item_milliseconds']:>5} ms  batch {result['batch_size']:>3}  sample "
        f"{result['sample_bytes']:>7} B  workers {result['num_workers']}  stock "
        f"{result['stock_microseconds']:>10,.1f} us  FastLoader "
        f"{result['fast_microseconds']:>10,.1f} us  x {result['ratio']:.2f}  CPU x "
        f"{cpu_ratio:.2f}  {len(result['pairs'])} pairs  {result['verdict']}"
    )


def summarise(results: list[dict[str, Any]]) -> str:
    """Return how many cells there are of each verdict, by number of workers."""
    lines = []
    for count in sorted({result["num_workers"] for result in results}):
        found = [result for result in results if result["num_workers"] == count]
        verdicts = Counter(result["verdict"] for result in found)
        ratios = sorted(result["ratio"] for result in found)
        lines.append(
            f"workers {count}: {len(found)} cells, {verdicts['behind']} behind, "
            f"{verdicts['open']} open; x {ratios[0]:.2f} to {ratios[-1]:.2f}, median "
            f"{statistics.median(ratios):.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run all cells and print those that are behind, or may be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--smoke", action="store_true", help="two small cells, no claims")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="for a cell, about")
    parser.add_argument("--longest", type=float, default=0.1, help="batch, in seconds")
    parser.add_argument(
        "--first-batches", action="store_true", help="of new loaders without workers"
    )
    parser.add_argument("--all", action="store_true", help="print every cell")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")
    workers = [0] if arguments.first_batches else arguments.workers
    chosen = cells(smoke=arguments.smoke, workers=workers, longest_seconds=arguments.longest)
    chosen = [cell for cell in chosen if cell.num_workers in workers]
    report: dict[str, Any] = {"question": (__doc__ or "").partition("\n")[0], **run_facts()}
    results: list[dict[str, Any]] = []
    try:
        with told_of_signals():
            for cell in chosen:
                seconds, fewest = (
                    (0.0, 1) if arguments.smoke else (arguments.seconds, FEWEST_PAIRS)
                )
                is_first = arguments.first_batches
                results.append(
                    run_cell(cell, seconds=seconds, fewest_pairs=fewest, are_new=is_first)
                )
                if arguments.all or (
                    results[-1]["verdict"] != "not behind" and not arguments.smoke
                ):
                    print(describe(results[-1]), flush=True)
    except BaseException as error:
        report["cut_off_by"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        if results:
            print(summarise(results))
        if len(results) < len(chosen):
            print(f"not complete: {len(results)} of {len(chosen)} cells.")
        if arguments.smoke:
            print("smoke run: these numbers mean nothing.")
        if arguments.json:
            report["cells"] = results
            arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
