"""How fast do batches reach a GPU, and how much of what the hardware can do is that?

Question: bytes per second that arrive on the device, for nearly free samples made by workers and
    for data in memory.
Held fixed: dataset, batch size, order by the same seed; one batch in 16 is used on the device, and
    the clock stops after the device has finished. The loop copies the batches of the stock loader,
    which do not come to the device by themselves.
Baseline: stock DataLoader with pinned memory and non-blocking copies, its best over workers.
Method: one run before the clock starts, then interleaved; a run is one epoch, or as many as a
    quarter of a second takes, with the start of each. With `--fresh` each epoch makes a new loader
    and counts its start: what a short job gets. "By hand" is a loop over tensors that lie on the
    device, whose batches are indexed one by one, or whose whole epoch is, which takes its memory
    twice. timm's PrefetchLoader makes floats of the batches as well, which cannot be turned off.
Limit: a copy from pinned memory of the same size; of data in memory, an epoch that is indexed at
    once by hand on the device.
Losing cases: small data in memory, against an epoch that is indexed at once by hand on the device:
    its batches are cut from that without a loader's start of an epoch, for twice the memory of the
    data.
Command: python benchmarks/bench_device.py --workload float32
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))

from _harness import Benchmark, Run, Work
from _peers_on_device import ON_DEVICE
from fastloader import FastLoader

_LEAST_SECONDS = 0.25
"""Of a run: some epochs take milliseconds, in which a machine that was idle has not woken up."""


class Workload(NamedTuple):
    """Shape of the data and how much of it an epoch has."""

    batch_size: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    num_samples: int
    in_memory: bool


WORKLOADS = {
    "float32": Workload(128, (3, 224, 224), torch.float32, 128 * 120, in_memory=False),
    "uint8": Workload(256, (3, 224, 224), torch.uint8, 256 * 120, in_memory=False),
    "small-in-memory": Workload(256, (3, 32, 32), torch.uint8, 50_000, in_memory=True),
    "large-in-memory": Workload(256, (3, 224, 224), torch.uint8, 20_000, in_memory=True),
}


class Ready(Dataset[Any]):
    """Samples that exist already."""

    def __init__(self, workload: Workload) -> None:
        self.samples = [
            torch.randint(0, 255, workload.shape).to(workload.dtype) for _ in range(8)
        ]
        self.length = workload.num_samples

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % 8], index


def make_dataset(workload: Workload) -> Any:
    """Return the data of a workload."""
    if not workload.in_memory:
        return Ready(workload)
    pixels = torch.empty((workload.num_samples, *workload.shape), dtype=torch.uint8)
    pixels.view(-1).view(torch.int64).random_()  # eight at a time
    return TensorDataset(pixels, torch.arange(workload.num_samples))


def choose(workload: str, batches: int | None, smoke: bool) -> Workload:
    """Return a workload with the length of epoch that was asked for."""
    chosen = WORKLOADS[workload]
    if smoke:
        batches = 4
    if batches is None:
        return chosen
    return chosen._replace(num_samples=chosen.batch_size * batches)


def prepare(
    kind: str,
    workload: str,
    workers: int,
    batches: int | None,
    smoke: bool,
    fresh: bool,
    prefetch: int = 4,
) -> Run:
    """Return epochs of batches onto the device."""
    chosen = choose(workload, batches, smoke)
    torch.manual_seed(0)
    options: dict[str, Any] = {"num_workers": workers, "shuffle": chosen.in_memory}
    if workers:
        options |= {"persistent_workers": True, "prefetch_factor": prefetch}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = make_dataset(chosen)

    def make_loader() -> Any:
        if kind == "stock":
            pins = device == "cuda"
            return DataLoader(dataset, chosen.batch_size, pin_memory=pins, **options)
        resident: Any = "device" if kind == "resident" else None
        return FastLoader(
            dataset, chosen.batch_size, device=device, resident=resident, **options
        )

    kept = None if fresh else make_loader()
    return epochs_of(
        lambda: make_loader() if kept is None else kept,
        chosen,
        device,
        arrives=kind != "stock",
        smoke=smoke,
    )


def prepare_peer(
    peer: str, workload: str, workers: int, batches: int | None, smoke: bool
) -> Run:
    """Return epochs of a peer's batches onto the device."""
    chosen = choose(workload, batches, smoke)
    dataset, begin = make_dataset(chosen), ON_DEVICE[peer]
    begin_epoch = begin(dataset, chosen.batch_size, workers, chosen.in_memory)
    return epochs_of(begin_epoch, chosen, "cuda", smoke=smoke)


def epochs_of(
    begin: Callable[[], Iterable[Any]],
    chosen: Workload,
    device: str,
    *,
    arrives: bool = True,
    smoke: bool,
) -> Run:
    """Return a run that takes the batches of whole epochs.

    Args:
        begin: Returns the batches of an epoch.
        chosen: What they are made of.
        device: Where they are to be.
        arrives: Whether they come there by themselves.
        smoke: One epoch is enough.
    """

    def run() -> Work:
        num_samples = 0
        first_seconds: list[float] = []
        total = torch.zeros((), device=device)
        began = time.perf_counter()
        while True:
            start = time.perf_counter()
            for number, (images, _) in enumerate(begin()):
                if number == 0:
                    first_seconds.append(time.perf_counter() - start)
                arrived = images if arrives else images.to(device, non_blocking=True)
                if number % 16 == 0:
                    total += arrived[-1].sum()
                num_samples += images.shape[0]
            if smoke or time.perf_counter() - began >= _LEAST_SECONDS:
                break
        total.item()  # waits for the device
        values = {"first_batch_seconds": statistics.median(first_seconds)}
        # As they are in the dataset: peers may have made larger types of them.
        num_bytes = num_samples * prod(chosen.shape) * chosen.dtype.itemsize
        return Work(samples=num_samples, nbytes=num_bytes, values=values)

    return run


def prepare_by_hand(workload: str, batches: int | None, at_once: bool, smoke: bool) -> Run:
    """Return epochs gathered by hand from data on the device.

    Args:
        workload: Name of the workload.
        batches: Of an epoch, if not those of the workload.
        at_once: Gather the whole epoch in one call, and cut it; else batch by batch.
        smoke: One small run.
    """
    chosen = choose(workload, batches, smoke)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = (tensor.to(device) for tensor in make_dataset(chosen).tensors)
    # As larger elements, which torch moves at several times the rate.
    flat = images.view(len(images), -1).view(torch.int64)
    size = chosen.batch_size

    def begin() -> Iterable[Any]:
        order = torch.randperm(len(flat)).to(device)
        if not at_once:
            return ((images[some], labels[some]) for some in torch.split(order, size))
        gathered = flat.index_select(0, order).view(torch.uint8).view(images.shape)
        return zip(torch.split(gathered, size), torch.split(labels[order], size), strict=True)

    return epochs_of(begin, chosen, device, smoke=smoke)


def prepare_limit(workload: str, batches: int | None, smoke: bool) -> Run:
    """Return copies of pinned memory, as many bytes as an epoch."""
    chosen = choose(workload, batches, smoke)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = torch.zeros(
        (chosen.batch_size, *chosen.shape), dtype=chosen.dtype, pin_memory=device == "cuda"
    )
    target = torch.empty_like(batch, device=device)

    def copy(_number: int) -> None:
        target.copy_(batch, non_blocking=True)

    return copies_of(copy, target.view(-1)[0].item, batch, chosen, smoke=smoke)


def prepare_host_limit(workload: str, batches: int | None, smoke: bool) -> Run:
    """Return copies of contiguous rows in memory by all of torch's threads, as many bytes."""
    chosen = choose(workload, batches, smoke)
    # Not zeros: pages that nobody has written to are one page, which stays in the cache.
    source = torch.ones((chosen.num_samples, *chosen.shape), dtype=chosen.dtype)
    targets = [torch.zeros_like(source[: chosen.batch_size]) for _ in range(4)]

    def copy(number: int) -> None:
        start = number * chosen.batch_size
        targets[number % 4].copy_(source[start : start + chosen.batch_size])

    return copies_of(copy, lambda: None, targets[0], chosen, smoke=smoke)


def copies_of(
    copy: Callable[[int], None],
    finish: Callable[[], Any],
    batch: torch.Tensor,
    chosen: Workload,
    *,
    smoke: bool,
) -> Run:
    """Return a run that copies the batches of whole epochs, as many as `epochs_of` takes.

    Args:
        copy: Copies the batch of a number.
        finish: Waits for the copies.
        batch: One of them.
        chosen: How many are in an epoch.
        smoke: One epoch is enough.
    """
    num_batches = chosen.num_samples // chosen.batch_size

    def run() -> Work:
        num_copied = 0
        began = time.perf_counter()
        while True:
            for number in range(num_batches):
                copy(number)
            num_copied += num_batches
            finish()
            if smoke or time.perf_counter() - began >= _LEAST_SECONDS:
                break
        return Work(nbytes=num_copied * batch.nbytes, samples=num_copied * chosen.batch_size)

    return run


def main() -> None:
    """Compare the loaders on one workload."""
    benchmark = Benchmark(__doc__, max_bytes_per_second=3e12)
    benchmark.parser.add_argument("--workload", choices=WORKLOADS, default="float32")
    benchmark.parser.add_argument("--workers", type=int, nargs="+", default=[8, 12, 14])
    benchmark.parser.add_argument("--stock-workers", type=int, nargs="+", default=[2, 8, 14])
    benchmark.parser.add_argument(
        "--stock-prefetch", type=int, nargs="+", default=[4], help="batches ahead a worker"
    )
    benchmark.parser.add_argument("--batches", type=int, help="batches of an epoch")
    benchmark.parser.add_argument("--fresh", action="store_true", help="a new loader each run")
    arguments = benchmark.arguments()
    chosen = WORKLOADS[arguments.workload]
    common = {
        "workload": arguments.workload,
        "batches": arguments.batches,
        "smoke": arguments.smoke,
    }
    loaders = common | {"fresh": arguments.fresh}
    stock_workers = arguments.stock_workers
    for workers in [0, *stock_workers] if chosen.in_memory else stock_workers:
        for prefetch in arguments.stock_prefetch if workers else [0]:
            name = f"stock, {workers} workers"
            if len(arguments.stock_prefetch) > 1 and workers:
                name += f", {prefetch} batches ahead each"
            options = loaders | {"workers": workers, "prefetch": prefetch}
            benchmark.add(name, prepare, group="stock", kind="stock", **options)
    for workers in [0] if chosen.in_memory else arguments.workers:
        benchmark.add(
            f"FastLoader, {workers} workers", prepare, kind="fast", workers=workers, **loaders
        )
    if not chosen.in_memory:
        for peer in ON_DEVICE:
            workers = stock_workers[0]
            name = f"{peer}, {workers} workers"
            benchmark.add(
                name, prepare_peer, may_fail=True, peer=peer, workers=workers, **common
            )
    if chosen.in_memory:
        benchmark.add("FastLoader, resident", prepare, kind="resident", workers=0, **loaders)
        for name, at_once in (("batch by batch", False), ("epoch at once", True)):
            benchmark.add(
                f"by hand on the device, {name}",
                prepare_by_hand,
                is_limit=at_once,
                at_once=at_once,
                **common,
            )
        benchmark.add("limit: host copy, all cores", prepare_host_limit, **common)
    # Batches that are gathered on the device never pass there: no limit for them.
    is_limit = not chosen.in_memory
    benchmark.add("limit: pinned copy", prepare_limit, is_limit=is_limit, **common)
    benchmark.main(baseline="stock", compared="samples_per_second")


if __name__ == "__main__":
    main()
