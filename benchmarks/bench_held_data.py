"""How much memory do workers take for data that the dataset holds?

Question: the most memory (PSS, so that shared pages count once) of the main process and its workers
    while an epoch runs, by how the dataset holds its data.
Held fixed: the data (an array, a list of arrays, or a list of dicts), batches of 256, two workers,
    order by the same sampler. Of dicts there are five for each array of 3 kB.
Baseline: stock DataLoader with the same start method; `x baseline` is its memory over that of the
    others.
Method: peak memory is watched in a run that is not timed; throughput stands beside it. The threads
    of all share what they have. Grain's worker processes are given up after one run. "Over imports"
    is anonymous and shared memory (PSS of all but pages of files) of the tree, read eight times in
    an epoch with two and four workers, less the same in the same process with 1 MB of data that is
    read as often. Stock is left out with four workers that do not fork: it sends each its own copy,
    which takes too long.
Limit: a process that holds the data and reads all of it, with no loader. Each worker process adds
    an interpreter of its own, whatever the loader.
Losing cases: lists of Python objects are copied page by page as soon as workers count references to
    them: by any loader that forks. Threads share them.
Command: python benchmarks/bench_held_data.py --json held-data.json
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    SequentialSampler,
    default_collate,
)

from _cost import tree_data_bytes
from _harness import PEAK, Benchmark, Run, Work
from _passes import SLOW_TO_START, count
from _peers import LOADERS
from fastloader import FastLoader

BATCH_SIZE = 256
NUM_WORKERS = 2
ROW_BYTES = 3072
WITH_METHOD: dict[str, Any] = {"DataLoader": DataLoader, "FastLoader": FastLoader}
OTHERS = (
    "StatefulDataLoader", "torchdata.nodes, threads", "torchdata.nodes, processes", "MONAI ThreadDataLoader",
    "SPDL, threads", "SPDL, processes", "Grain, threads", "Grain, processes",
    "Hugging Face datasets", "FastLoader, threads",
)  # fmt: skip


class Held(Dataset[Any]):
    """Rows of 3 kB, held in one of three ways, and read `times` one after the other."""

    def __init__(self, kind: str, megabytes: int, times: int = 1) -> None:
        num_rows = megabytes * 2**20 // ROW_BYTES
        rows: Any = np.ones((num_rows, ROW_BYTES), np.uint8)
        if kind == "list of arrays":
            rows = [row.copy() for row in rows]
        elif kind == "list of dicts":  # in small Python objects
            rows = [{"label": row, "name": f"row {row}"} for row in range(num_rows * 5)]
        self.rows = rows
        self.times = times

    def __len__(self) -> int:
        return len(self.rows) * self.times

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index % len(self.rows)]
        return torch.tensor(row["label"]) if isinstance(row, dict) else torch.from_numpy(row)


def _passes_of(epochs: Any, megabytes: int) -> Run:
    def run() -> Work:
        work = count(iter(epochs()))
        return Work(work.samples, work.batches, values={"held_bytes": megabytes * 2**20})

    return run


def with_method(loader: str, method: str, kind: str, megabytes: int) -> Run:
    """Return an epoch with workers that are started by a method."""
    made = WITH_METHOD[loader](
        Held(kind, megabytes), BATCH_SIZE, num_workers=NUM_WORKERS,
        multiprocessing_context=method, persistent_workers=True,
    )  # fmt: skip
    return _passes_of(lambda: iter(made), megabytes)


def by_itself(loader: str, kind: str, megabytes: int) -> Run:
    """Return an epoch of a loader that has no choice of start methods."""
    return _passes_of(
        LOADERS[loader](Held(kind, megabytes), BATCH_SIZE, NUM_WORKERS, False), megabytes
    )


def data_alone(kind: str, megabytes: int) -> Run:
    """Hold the data and read it, batch by batch, in one process."""
    held = Held(kind, megabytes)
    batches = BatchSampler(SequentialSampler(held), BATCH_SIZE, drop_last=False)
    return _passes_of(
        lambda: (default_collate([held[index] for index in batch]) for batch in batches),
        megabytes,
    )


def over_imports(loader: str, method: str, num_workers: int, megabytes: int) -> Run:
    """Return an epoch over an array, measured by the memory that it takes over that of imports."""
    base_bytes = _most_data_bytes(loader, method, num_workers, 1, times=megabytes)

    def run() -> Work:
        whole_bytes = _most_data_bytes(loader, method, num_workers, megabytes, times=1)
        taken_bytes = whole_bytes - base_bytes
        return Work(values={"over_imports_bytes": taken_bytes, "held_bytes": megabytes * 2**20})

    return run


def _most_data_bytes(
    loader: str, method: str, num_workers: int, megabytes: int, times: int
) -> int:
    made = WITH_METHOD[loader](
        Held("array", megabytes, times), BATCH_SIZE, num_workers=num_workers,
        multiprocessing_context=method,
    )  # fmt: skip
    num_batches = len(made)
    looks = {num_batches * part // 8 for part in range(1, 9)}
    return max(tree_data_bytes() for number, _ in enumerate(made, start=1) if number in looks)


def main() -> None:
    """Compare the loaders for each way to hold data."""
    benchmark = Benchmark(__doc__, prepares_at_once=True)
    benchmark.parser.add_argument("--megabytes", type=int, default=256)
    arguments = benchmark.arguments()
    kinds = ("array", "list of arrays", "list of dicts")
    for kind in kinds[:1] if arguments.smoke else kinds:
        given: dict[str, Any] = {
            "kind": kind,
            "megabytes": 4 if arguments.smoke else arguments.megabytes,
        }
        for method in ("fork",) if arguments.smoke else ("fork", "spawn"):
            table = f"{kind}, {method}"
            benchmark.add(
                f"{table}: limit, the data alone",
                data_alone,
                table=table,
                is_limit=True,
                **given,
            )
            for loader in WITH_METHOD:
                benchmark.add(
                    f"{table}: {loader}", with_method, table=table, loader=loader,
                    group="stock" if loader == "DataLoader" else "", method=method, **given,
                )  # fmt: skip
            if method == "fork" and not arguments.smoke:
                for loader in OTHERS:
                    benchmark.add(
                        f"{table}: {loader}", by_itself, table=table, loader=loader,
                        may_fail=not loader.startswith("FastLoader"),
                        may_be_given_up=loader in SLOW_TO_START, **given,
                    )  # fmt: skip
    for method in ("fork",) if arguments.smoke else ("fork", "forkserver", "spawn"):
        for loader in WITH_METHOD:
            for num_workers in (2,) if loader == "DataLoader" and method != "fork" else (2, 4):
                table = f"over imports, {method}"
                benchmark.add(
                    f"{table}: {loader}, {num_workers} workers", over_imports, table=table,
                    group="stock" if loader == "DataLoader" else "", loader=loader, method=method,
                    num_workers=num_workers, megabytes=4 if arguments.smoke else 1000,
                )  # fmt: skip
    benchmark.main(baseline="stock", compared=PEAK)


if __name__ == "__main__":
    main()
