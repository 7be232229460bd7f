"""How long does a new loader take to its first batch?

Question: seconds from making the loader to its first batch, with a dataset that holds 1 or 200 MB
    of NumPy arrays, by how workers are started, and with threads.
Held fixed: dataset, batches of 32, the number of workers.
Baseline: stock DataLoader with the same start method; for threads, forked.
Method: each run makes a loader, takes one batch and ends the loader; the clock of the first batch
    stops when it is there, wall and CPU seconds count the end as well. The first run in a process,
    which is the warm-up, is also the one that starts a fork server. Grain's worker processes are
    given up after one run.
Limit: a thread that reads a batch and says so; beside processes, a batch read in the calling
    process, as FastLoader may make the first ones there while workers start. What a process takes
    that is started the same way and reads a batch is shown, too: it is given no dataset, which may
    be shared, and its fork server has imported what it needs.
Losing cases: with fork and little data both take as long as the system takes to fork.
Command: python benchmarks/bench_startup.py --workers 2 --json startup.json
"""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from _harness import FIRST, Benchmark, Run, Work
from _passes import SLOW_TO_START, leaves
from _peers import LOADERS
from fastloader import FastLoader

BATCH_SIZE = 32
WITH_METHOD: dict[str, Any] = {"DataLoader": DataLoader, "FastLoader": FastLoader}
FORKED = (
    "StatefulDataLoader", "torchdata.nodes, processes", "SPDL, processes", "Grain, processes",
    "Hugging Face datasets",
)  # fmt: skip
THREADS = (
    "torchdata.nodes, threads", "MONAI ThreadDataLoader", "SPDL, threads", "Grain, threads",
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


def _first_of(dataset: Held) -> torch.Tensor:
    batch: torch.Tensor = default_collate([dataset[index] for index in range(BATCH_SIZE)])
    return batch


def _say(connection: Connection) -> None:
    connection.send_bytes(_first_of(Held(1)).numpy().tobytes())


def process_alone(method: str) -> Run:
    """Start a process that makes a batch."""
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        # Its default, to import the main script, does nothing in Python 3.11.
        context.set_forkserver_preload(["fastloader"])

    def run() -> Work:
        start = time.perf_counter()
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_say, args=(writer,), daemon=True)
        process.start()
        reader.recv_bytes()
        arrived = time.perf_counter()
        process.join()
        return Work(samples=BATCH_SIZE, values={"first_batch_seconds": arrived - start})

    return run


def nobody_else(megabytes: int) -> Run:
    """Make a batch here."""
    dataset = Held(megabytes)

    def run() -> Work:
        start = time.perf_counter()
        samples = len(_first_of(dataset))
        return Work(
            samples=samples, values={"first_batch_seconds": time.perf_counter() - start}
        )

    return run


def thread_alone(megabytes: int) -> Run:
    """Start a thread that makes a batch."""
    dataset = Held(megabytes)

    def run() -> Work:
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_first_of, dataset).result()
            arrived = time.perf_counter()
        return Work(samples=BATCH_SIZE, values={"first_batch_seconds": arrived - start})

    return run


def main() -> None:
    """Compare the loaders for each size and start method."""
    benchmark = Benchmark(__doc__, prepares_at_once=True)
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
            if method == "fork" and not arguments.smoke:
                _add_others(benchmark, table, FORKED, given)
            benchmark.add(
                f"{table}: a process alone", process_alone, table=table, method=method,
            )  # fmt: skip
            benchmark.add(
                f"{table}: limit, a batch made here", nobody_else, table=table,
                is_limit=True, megabytes=megabytes,
            )  # fmt: skip
        table = f"{megabytes} MB, threads"
        benchmark.add(
            f"{table}: DataLoader, forked", with_method, table=table, loader="DataLoader",
            method="fork", **given,
        )  # fmt: skip
        _add_others(benchmark, table, THREADS[-1:] if arguments.smoke else THREADS, given)
        benchmark.add(
            f"{table}: limit, a thread alone",
            thread_alone,
            table=table,
            is_limit=True,
            megabytes=megabytes,
        )
    benchmark.main(baseline=FIRST, compared="first_batch_seconds")


def _add_others(
    benchmark: Benchmark, table: str, loaders: tuple[str, ...], given: dict[str, Any]
) -> None:
    for loader in loaders:
        benchmark.add(
            f"{table}: {loader}", by_itself, table=table, loader=loader,
            may_fail=not loader.startswith("FastLoader"),
            may_be_given_up=loader in SLOW_TO_START, **given,
        )  # fmt: skip


if __name__ == "__main__":
    main()
