"""How much time is lost where one epoch ends and the next begins?

Question: the wall time of many short epochs less that of one long epoch of the same samples, for
    each end of an epoch.
Held fixed: samples that sleep half a millisecond, as one that waits for a disk does, so that a busy
    machine disturbs little; shuffled batches of 8; 16 epochs of 20 batches, or one of 320.
Baseline: stock DataLoader, the better of as it comes and tuned.
Method: a run is the short epochs, then the long one; loaders live on, and one run of each is made
    before the clock starts. FastLoader as it comes is left out, since it takes on more workers than
    the others have.
Limit: the samples alone, in as many threads as there are workers. No true rate is above the number
    of workers over half a millisecond.
Losing cases: with persistent workers and long epochs nobody loses much.
Command: python benchmarks/bench_epochs.py --workers 2 --json epochs.json
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils.data import Dataset

from _harness import Benchmark, Run, Work
from _passes import FEW, SLOW_TO_START, add_loaders, count
from _peers import LOADERS

SAMPLE_SECONDS = 0.0005
BATCH_SIZE = 8


class Sleeping(Dataset[torch.Tensor]):
    """Samples that wait."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SAMPLE_SECONDS)
        return torch.zeros(256)


def many_passes(
    loader: str, make_dataset: Any, batch_size: int, num_workers: int, shuffle: bool,
    num_epochs: int, num_batches: int,
) -> Run:  # fmt: skip
    """Return short epochs and a long one of as many samples."""
    torch.set_num_threads(1)
    factory = LOADERS[loader]
    length = num_batches * batch_size
    short = factory(make_dataset(length), batch_size, num_workers, shuffle)
    long = factory(make_dataset(length * num_epochs), batch_size, num_workers, shuffle)

    def run() -> Work:
        first_seconds = []
        start = time.perf_counter()
        for _ in range(num_epochs):
            asked = time.perf_counter()
            batches = iter(short())
            next(batches)
            first_seconds.append(time.perf_counter() - asked)
            count(batches)
        middle = time.perf_counter()
        samples = count(iter(long())).samples
        end = time.perf_counter()
        lost = ((middle - start) - (end - middle)) / num_epochs
        values = {
            "epoch_gap_seconds": lost,
            "first_batch_seconds": sorted(first_seconds)[num_epochs // 2],
        }
        return Work(samples=2 * samples, batches=2 * num_epochs * num_batches, values=values)

    return run


def samples_alone(num_workers: int, num_samples: int) -> Run:
    """Return the samples in threads, with nothing around them."""
    dataset = Sleeping(num_samples)

    def run() -> Work:
        with ThreadPoolExecutor(num_workers) as threads:
            done = sum(1 for _ in threads.map(dataset.__getitem__, range(num_samples)))
        return Work(samples=done)

    return run


def main() -> None:
    """Compare the loaders."""
    benchmark = Benchmark(__doc__, starts_quickly=True)
    benchmark.parser.add_argument("--workers", type=int, default=2)
    arguments = benchmark.arguments()
    num_epochs, num_batches = (2, 4) if arguments.smoke else (16, 20)
    add_loaders(
        benchmark,
        Sleeping,
        batch_size=BATCH_SIZE,
        num_workers=(arguments.workers,),
        shuffle=True,
        prepare=many_passes,
        only=[name for name in (FEW if arguments.smoke else LOADERS) if name != "FastLoader"],
        left_out=SLOW_TO_START,
        num_epochs=num_epochs,
        num_batches=num_batches,
        max_samples_per_second=arguments.workers / SAMPLE_SECONDS,
    )
    benchmark.add(
        "limit: samples alone",
        samples_alone,
        is_limit=True,
        num_workers=arguments.workers,
        num_samples=2 * BATCH_SIZE * num_epochs * num_batches,
    )
    benchmark.main(baseline="stock")


if __name__ == "__main__":
    main()
