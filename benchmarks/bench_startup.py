"""How long does a new loader take to its first batch?

Question: seconds from making the loader to its first batch, with a dataset that holds 1 or 200 MB
    of NumPy arrays, by how workers are started.
Held fixed: dataset, batches of 32, the number of workers.
Baseline: stock DataLoader with the same start method.
Method: each run makes a loader, takes one batch and ends the loader; the clock of the first batch
    stops when it is there, wall and CPU seconds count the end as well. The first run in a process,
    which is the warm-up, is also the one that starts a fork server.
Losing cases: with fork and little data both take as long as the system takes to fork.
Command: python benchmarks/bench_startup.py --workers 2 --json startup.json
"""

import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from _harness import FIRST, Benchmark, Run, Work
from _passes import leaves
from _peers import LOADERS
from fastloader import FastLoader

BATCH_SIZE = 32
WITH_METHOD: dict[str, Any] = {"DataLoader": DataLoader, "FastLoader": FastLoader}
OTHERS = (
    "torchdata.nodes, threads", "torchdata.nodes, processes", "MONAI ThreadDataLoader",
    "SPDL, threads", "SPDL, processes", "Grain, threads", "Grain, processes",
    "FastLoader, threads",
)  # fmt: skip


class Held(Dataset[torch.Tensor]):
    """Holds arrays, which a process that is not forked has to be sent."""

    def __init__(self, megabytes: int) -> None:
        self.rows = np.ones((megabytes * 1024, 1024), np.uint8)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.rows[index % len(self.rows)])


def _take_first(batches: Any) -> tuple[int, float]:
    batch = next(batches)
    arrived = time.perf_counter()
    return len(next(leaves(batch))), arrived


def with_method(loader: str, method: str, megabytes: int, num_workers: int) -> Run:
    """Start a loader whose workers are started by a method."""
    dataset = Held(megabytes)

    def run() -> Work:
        start = time.perf_counter()
        made = WITH_METHOD[loader](
            dataset, BATCH_SIZE, num_workers=num_workers, multiprocessing_context=method
        )
        samples, arrived = _take_first(iter(made))
        return Work(samples=samples, values={"first_batch_seconds": arrived - start})

    return run


def by_itself(loader: str, megabytes: int, num_workers: int) -> Run:
    """Start a loader that has no choice of methods, or that threads work for."""
    dataset = Held(megabytes)

    def run() -> Work:
        start = time.perf_counter()
        epochs = LOADERS[loader](dataset, BATCH_SIZE, num_workers, False)
        samples, arrived = _take_first(iter(epochs()))
        return Work(samples=samples, values={"first_batch_seconds": arrived - start})

    return run


def main() -> None:
    """Compare the loaders for each size and start method."""
    benchmark = Benchmark(__doc__)
    benchmark.parser.add_argument("--workers", type=int, default=2)
    arguments = benchmark.arguments()
    for megabytes in (1,) if arguments.smoke else (1, 200):
        given: dict[str, Any] = {"megabytes": megabytes, "num_workers": arguments.workers}
        for method in ("fork",) if arguments.smoke else ("fork", "forkserver", "spawn"):
            table = f"{megabytes} MB, {method}"
            for loader in WITH_METHOD:
                benchmark.add(
                    f"{table}: {loader}", with_method, table=table, loader=loader,
                    method=method, **given,
                )  # fmt: skip
            if method == "fork":
                for loader in OTHERS[-1:] if arguments.smoke else OTHERS:
                    benchmark.add(
                        f"{table}: {loader}", by_itself, table=table, loader=loader,
                        may_fail=not loader.startswith("FastLoader"), **given,
                    )  # fmt: skip
    benchmark.main(baseline=FIRST, compared="first_batch_seconds")


if __name__ == "__main__":
    main()
