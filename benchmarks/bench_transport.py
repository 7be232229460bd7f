"""What does a batch cost on its way from a worker to the training loop?

Question: how much time and CPU goes into moving a batch whose samples cost nearly nothing, by the
    size of the batch and the number of its fields.
Held fixed: the dataset (a list of eight ready samples), batches in order, one value of each page of
    each batch read by the loop.
Baseline: stock DataLoader, the better of as it comes and tuned.
Method: loaders live on; one epoch before the clock starts, then whole epochs.
Limit: one copy of the same bytes, by one thread, into memory that exists, read as all batches are:
    a loader that takes samples as they are has to do no less by torch's own copy. Batches of 77 MB
    go past the cache where that was compiled, which takes less CPU time; their pages, which no
    cache holds, are read afterwards.
Losing cases: batches under some 10 kB, where both are bound by the pipe and the pickle.
Command: python benchmarks/bench_transport.py --workload large --workers 1 --json transport-large.json
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

from _harness import Benchmark, Run
from _passes import FEW, add_loaders, pass_over


class Workload(NamedTuple):
    """Shape of the data and how much of it an epoch has."""

    batch_size: int
    shape: tuple[int, ...]
    num_fields: int
    num_batches: int


WORKLOADS = {
    "large": Workload(128, (3, 224, 224), 1, 40),  # 77 MB
    "medium": Workload(16, (3, 224, 224), 1, 200),  # 9.6 MB
    "small": Workload(256, (3, 32, 8), 1, 600),  # 0.8 MB
    "tiny": Workload(8, (1, 32, 32), 1, 800),  # 33 kB
    "fields": Workload(8, (64,), 20, 200),  # 20 fields of 2 kB
}


class Ready(Dataset[Any]):
    """Samples that exist already."""

    def __init__(self, workload: Workload) -> None:
        self.samples = [
            {
                f"field_{number}": torch.rand(workload.shape)
                for number in range(workload.num_fields)
            }
            for _ in range(8)
        ]
        self.length = workload.batch_size * workload.num_batches

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % 8]


def choose(workload: str, smoke: bool) -> Workload:
    """Return a workload, short for a smoke run."""
    chosen = WORKLOADS[workload]
    return chosen._replace(num_batches=6) if smoke else chosen


def make_dataset(workload: str, smoke: bool) -> Ready:
    """Return the samples of a workload."""
    return Ready(choose(workload, smoke))


def copy_alone(workload: str, smoke: bool) -> Run:
    """Return the copy of every sample to its place in a batch that exists."""
    torch.set_num_threads(1)
    chosen = choose(workload, smoke)
    samples = Ready(chosen).samples
    fields = list(samples[0])
    batch = {field: torch.zeros((chosen.batch_size, *chosen.shape)) for field in fields}

    def batches() -> Iterator[Any]:
        for _ in range(chosen.num_batches):
            for field in fields:
                rows = [samples[number % 8][field] for number in range(chosen.batch_size)]
                torch.stack(rows, out=batch[field])
            yield batch

    return pass_over(batches)


def main() -> None:
    """Compare the loaders on one workload."""
    benchmark = Benchmark(__doc__, prepares_at_once=True)
    benchmark.parser.add_argument("--workload", choices=WORKLOADS, default="medium")
    benchmark.parser.add_argument("--workers", type=int, default=1)
    arguments = benchmark.arguments()
    given: dict[str, Any] = {"workload": arguments.workload, "smoke": arguments.smoke}
    add_loaders(
        benchmark,
        make_dataset,
        batch_size=WORKLOADS[arguments.workload].batch_size,
        num_workers=(arguments.workers,),
        shuffle=False,
        only=FEW if arguments.smoke else (),
        **given,
    )
    benchmark.add("limit: copy alone", copy_alone, is_limit=True, **given)
    benchmark.main(baseline="stock")


if __name__ == "__main__":
    main()
