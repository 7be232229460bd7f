"""What does a batch cost on its way from a worker to the training loop?

Question: how much time and CPU goes into moving a batch whose samples cost nearly nothing.
Held fixed: the dataset (a list of eight ready tensors), batches in order, two batches ahead of
    each worker, one page of each batch touched by the loop.
Baseline: stock DataLoader with persistent workers, its best over prefetch 2 and 4.
Method: workers are started and an epoch is run before the clock starts; then whole epochs.
Losing cases: batches under some 10 kB, where both are bound by the pipe and the pickle.
Command: python benchmarks/bench_transport.py --workload large --workers 1
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(Path(__file__).parent))

from _harness import Benchmark, Run, Work
from fastloader import FastLoader


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
    "tiny": Workload(8, (1, 32, 32), 1, 1500),  # 33 kB
    "fields": Workload(8, (64,), 20, 600),  # 20 fields of 2 kB
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


def prepare(kind: str, workload: str, workers: int, prefetch: int, smoke: bool) -> Run:
    """Return one epoch through a loader whose workers live on."""
    chosen = WORKLOADS[workload]
    if smoke:
        chosen = chosen._replace(num_batches=6)
    torch.set_num_threads(1)
    loader_class: Any = FastLoader if kind == "fast" else DataLoader
    loader = loader_class(
        Ready(chosen),
        chosen.batch_size,
        num_workers=workers,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers else None,
    )

    def run() -> Work:
        num_bytes = num_batches = 0
        for batch in loader:
            num_batches += 1
            for field in batch.values():
                num_bytes += field.nbytes
                field.view(-1)[::1024].sum()
        return Work(
            batches=num_batches, samples=num_batches * chosen.batch_size, nbytes=num_bytes
        )

    return run


def main() -> None:
    """Compare the loaders on one workload."""
    benchmark = Benchmark(__doc__)
    benchmark.parser.add_argument("--workload", choices=WORKLOADS, default="medium")
    benchmark.parser.add_argument("--workers", type=int, default=1)
    arguments = benchmark.arguments()
    common = {
        "workload": arguments.workload,
        "workers": arguments.workers,
        "smoke": arguments.smoke,
    }
    for prefetch in (2, 4) if arguments.workers else (2,):
        name = f"stock, prefetch {prefetch}"
        benchmark.add(name, prepare, group="stock", kind="stock", prefetch=prefetch, **common)
    benchmark.add("FastLoader", prepare, kind="fast", prefetch=2, **common)
    benchmark.main(baseline="stock")


if __name__ == "__main__":
    main()
