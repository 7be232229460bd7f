"""Are the settings that FastLoader chooses, or tune finds, as fast as the best there are?

Question: seconds of an epoch with automatic settings, and with those that `tune` finds in 30 s,
    against all fixed numbers of worker processes and threads up to 8, or 32 where samples wait, and
    deeper prefetching, on six kinds of work; and of the first epoch over 1,000 cheap samples,
    loader made anew.
Held fixed: dataset, order, batch size; workers live on between epochs, but for the first epoch.
Baseline: the fastest of the fixed settings, found by trying all of them in the same rounds; that of
    a round is the one that was the fastest in all others, as the fastest of many in a round is
    partly the luckiest. For the first epoch, stock's default, which has no workers.
Method: equal settings differ from one process to the next where memory is the limit, by where the
    pages of their buffers happen to lie. So each configuration gets a new process in each round,
    one at a time, and what counts is the middle one of three epochs there (in the first round one),
    after one that does not; ratios are medians over the rounds, and their quartiles tell how far
    processes differ. An epoch is in the order of the dataset, since shuffled epochs of uneven
    samples differ. tune is asked once, before. The making of loaders, and 3 s of epochs in which
    automatic workers are taken on, are preparation. Fixed settings that take over twice as long as
    the fastest in the first round, or 1.3 times as long by the median of three rounds or more, are
    not run again: none of them is the best. It prints the share of the best fixed number of
    processes, with nothing else changed, too: automatic settings choose no more than that number.
    Loaders of a first epoch are made over and over in one process each, by turns.
Limit: the samples, read by as many processes as there are cores, or 32 where they wait, and dropped
    where they are, rows of tensors gathered into memory that exists: nothing travels. For the first
    epoch, by this process alone.
Result: `x baseline` of at least 0.9 means within 10 % of the best, 1 or more no later than stock.
Losing cases: the first epoch of cheap samples, if it has few batches: a loader takes longer to make
    than stock's, more so where the caches of the processor are cold, and wins that back batch by
    batch.
Command: python benchmarks/bench_reference_workloads.py --processes 7 --runs 41 --json reference_workloads.json
"""

import multiprocessing
import time
import warnings
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from _facts import usable_cpus
from _harness import Benchmark, Run, Work
from _passes import count, pass_over
from _verdict import ratios_to_fastest
from _workloads import WORKLOADS, CheapItems
from fastloader import FastLoader, LoaderSettings
from fastloader.tuning import TuningReport, measure_settings

SETTLING_SECONDS = 3.0
EPOCHS_OF_A_PROCESS = 3


def fixed_settings(most: int) -> dict[str, dict[str, Any]]:
    """Return all fixed settings that are tried, by name.

    Args:
        most: Workers at most.
    """
    numbers = [number for number in (1, 2, 4, 8, 16, 32) if number <= most]
    return {
        "no workers": {"num_workers": 0},
        **{
            f"{number} {kind}{', prefetch 4' if prefetch_factor == 4 else ''}": {
                "num_workers": number,
                "workers": kind,
                "prefetch_factor": prefetch_factor,
            }
            for kind in ("processes", "threads")
            for number, prefetch_factor in (*((number, 2) for number in numbers), (2, 4))
            if (number, kind) != (1, "threads")
        },
    }


def load(workload: str, scale: float) -> dict[str, Any]:
    """Return dataset and batches as options of a loader.

    The batches are a list, so that no loader knows the order of its next epoch before that begins:
    else it would work on it while others have their turn.
    """
    chosen = WORKLOADS[workload]
    num_samples = int(chosen.num_samples * scale)
    size = chosen.batch_size
    batches = [[*range(i, min(i + size, num_samples))] for i in range(0, num_samples, size)]
    return {"dataset": chosen.make(num_samples), "batch_sampler": batches}


def fixed(workload: str, scale: float, options: dict[str, Any]) -> Run:
    """Read epochs with given settings."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # that is the question
    return pass_over(FastLoader(**load(workload, scale), **options).__iter__)


def automatic(workload: str, scale: float) -> Run:
    """Read epochs with automatic settings, once their workers have been taken on."""
    loader = FastLoader(**load(workload, scale))
    read_until_settled(loader, SETTLING_SECONDS * scale)
    return pass_over(loader.__iter__)


def read_until_settled(loader: FastLoader[Any], seconds: float = SETTLING_SECONDS) -> None:
    """Read epochs while automatic workers are taken on."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in loader:
            pass


def tune(workload: str, scale: float, budget_seconds: float) -> TuningReport:
    """Let tune find the settings of a workload."""
    given = load(workload, scale)
    return measure_settings(
        given["dataset"],
        batch_sampler=given["batch_sampler"],
        budget_seconds=budget_seconds,
        save=False,
    )


def tuned(workload: str, scale: float, settings: LoaderSettings) -> Run:
    """Read epochs with the settings that tune has found."""
    return pass_over(FastLoader(**load(workload, scale), settings=settings).__iter__)


def first_epoch(loader: str, num_samples: int) -> Run:
    """Make a loader and read its first epoch."""
    kinds: dict[str, Any] = {"DataLoader": DataLoader, "FastLoader": FastLoader}
    dataset = CheapItems(num_samples)

    def run() -> Work:
        return count(iter(kinds[loader](dataset, 32)))

    return run


def samples_alone(workload: str, scale: float) -> Run:
    """Read the samples in processes that live on, and drop them there."""
    given, chosen = load(workload, scale), WORKLOADS[workload]
    number = chosen.most_workers if chosen.waits else usable_cpus()
    return run_in_processes(given["dataset"], given["batch_sampler"], number)


def run_in_processes(dataset: Any, batches: list[list[int]], number: int = 0) -> Run:
    """Return a run that reads the samples in processes which live on.

    Args:
        dataset: Of the samples.
        batches: Their indices.
        number: Of processes; as many as there are cores if 0.
    """
    number = number or usable_cpus()
    pipes = [multiprocessing.Pipe() for _ in range(number)]
    for place, (_, theirs) in enumerate(pipes):
        multiprocessing.get_context("fork").Process(
            target=_read_when_asked, args=(theirs, dataset, batches[place::number]), daemon=True
        ).start()

    def run() -> Work:
        for ours, _ in pipes:
            ours.send(None)
        return Work(samples=sum(ours.recv() for ours, _ in pipes))

    return run


def _read_when_asked(connection: Connection, dataset: Any, batches: list[list[int]]) -> None:
    torch.set_num_threads(1)
    while True:
        connection.recv()
        _read(dataset, batches)
        connection.send(sum(map(len, batches)))


def _read(dataset: Any, batches: list[list[int]]) -> None:
    if isinstance(dataset, TensorDataset):
        _gather(dataset.tensors, batches)
        return
    for batch in batches:
        for index in batch:
            dataset[index]


def _gather(tensors: tuple[torch.Tensor, ...], batches: list[list[int]]) -> None:
    """Gather rows into memory that exists."""
    size = max(map(len, batches))
    buffers = [torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in tensors]
    for batch in batches:
        rows = torch.tensor(batch)
        for tensor, buffer in zip(tensors, buffers, strict=True):
            torch.index_select(tensor, 0, rows, out=buffer[: len(batch)])


def first_samples_alone(num_samples: int) -> Run:
    """Read the samples of a first epoch."""
    dataset = CheapItems(num_samples)

    def run() -> Work:
        _read(dataset, [[*range(num_samples)]])
        return Work(samples=num_samples)

    return run


def print_share_of_best_count(workload: str, results: dict[str, Any]) -> None:
    """Print how near automatic settings come to the best number of processes, all else as it comes.

    Nothing, where they were not measured.

    Args:
        workload: Its name.
        results: Of all configurations, from the report.
    """
    ran = {
        name.removeprefix(f"{workload}: "): result
        for name, result in results.items()
        if result["table"] == workload and "runs" in result
    }
    counts = {
        name: result
        for name, result in ran.items()
        if result["group"] == "fixed" and name.endswith(("no workers", " processes"))
    }
    if not counts or "automatic" not in ran:
        return  # left out by --only
    ratios = ratios_to_fastest(ran["automatic"], counts, "wall_seconds")
    print(f"{workload}: automatic is {median(ratios):.2f} of the best number of processes")


def main() -> None:
    """Compare the settings for each workload."""
    benchmark = Benchmark(__doc__, starts_quickly=True)
    benchmark.parser.add_argument("--workloads", nargs="+", default=[*WORKLOADS])
    arguments = benchmark.arguments()
    is_smoke = arguments.smoke
    scale = 0.1 if is_smoke else 1.0
    workloads = ["cheap items"] if is_smoke else arguments.workloads
    for workload in workloads:
        options: dict[str, Any] = {
            "table": workload,
            "workload": workload,
            "scale": scale,
            "runs_in_process": EPOCHS_OF_A_PROCESS,
        }
        if arguments.only is None or arguments.only in f"{workload}: tuned":
            found = tune(workload, scale, budget_seconds=0.5 if is_smoke else 30.0)
            label = found.best.candidate.label()
            benchmark.add(
                f"{workload}: tuned: {label}", tuned, settings=found.settings, **options
            )
        benchmark.add(f"{workload}: automatic", automatic, **options)
        settings = fixed_settings(WORKLOADS[workload].most_workers)
        for name, given in list(settings.items())[: 2 if is_smoke else None]:
            benchmark.add(
                f"{workload}: {name}",
                fixed,
                group="fixed",
                may_be_given_up=True,
                options=given,
                **options,
            )
        benchmark.add(
            f"{workload}: limit: samples alone", samples_alone, is_limit=True, **options
        )
    name = "first epoch of 1,000 cheap samples"
    for loader in ("DataLoader", "FastLoader"):
        group = "fixed" if loader == "DataLoader" else ""
        benchmark.add(
            f"{name}: {loader}",
            first_epoch,
            table=name,
            group=group,
            loader=loader,
            num_samples=1000,
        )
    benchmark.add(
        f"{name}: limit: samples alone",
        first_samples_alone,
        table=name,
        is_limit=True,
        num_samples=1000,
    )
    report = benchmark.main(baseline="fixed", is_chosen_apart=True)
    for workload in workloads:
        print_share_of_best_count(workload, report["results"])


if __name__ == "__main__":
    main()
