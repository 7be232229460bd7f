"""Take batches as a training loop would, and count what comes."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from _harness import Benchmark, Run, Work
from _measurement import cannot_run
from _peers import LOADERS, OURS, STOCK, Epochs

__all__ = [
    "FEW", "SLOW_TO_START", "add_loaders", "count", "count_images", "leaves", "one_pass", "pass_over",
]  # fmt: skip

_PAGE_BYTES = 4096


def leaves(batch: Any) -> Iterator[Any]:
    """Yield the tensors and arrays of a batch."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from leaves(part)
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            yield from leaves(part)


def count(batches: Iterator[Any]) -> Work:
    """Take all batches, reading one value of each whole page of them."""
    num_samples = num_batches = num_bytes = 0
    for batch in batches:
        parts = list(leaves(batch))
        num_batches += 1
        num_samples += len(parts[0])
        for part in parts:
            num_bytes += part.nbytes
            if part.nbytes >= _PAGE_BYTES:
                part.reshape(-1)[:: _PAGE_BYTES // part.itemsize].sum()
    return Work(samples=num_samples, batches=num_batches, nbytes=num_bytes)


def pass_over(epochs: Epochs) -> Run:
    """Return a run that is one pass."""

    def run() -> Work:
        return count(iter(epochs()))

    return run


def count_images(batches: Iterator[Any]) -> Work:
    """Take all batches, reading one value of each image: the first tensor of a batch."""
    num_samples = num_batches = num_bytes = 0
    for batch in batches:
        parts = list(leaves(batch))
        images = parts[0]
        num_batches += 1
        num_samples += len(images)
        num_bytes += sum(part.nbytes for part in parts)
        images.reshape(len(images), -1)[:, 0].sum()
    return Work(samples=num_samples, batches=num_batches, nbytes=num_bytes)


def one_pass(
    loader: str,
    make_dataset: Any,
    batch_size: int,
    num_workers: int,
    shuffle: bool,
    **given: Any,
) -> Run:
    """Prepare a loader by its name, over a dataset that `make_dataset` makes of `given`.

    torch computes on one thread, as in the workers of all loaders.
    """
    torch.set_num_threads(1)
    factory = LOADERS[loader]
    return pass_over(factory(make_dataset(**given), batch_size, num_workers, shuffle))


def add_loaders(
    benchmark: Benchmark,
    make_dataset: Any,
    *,
    batch_size: int,
    num_workers: tuple[int, ...],
    shuffle: bool,
    table: str = "",
    prepare: Any = one_pass,
    only: Collection[str] = (),
    left_out: Mapping[str, str] = {},
    **given: Any,
) -> None:
    """Add stock's loader, all peers and ours, or those in `only`.

    Those that can do without workers are added with each of `num_workers`, the others with those
    that are not 0. Stock's loader, tuned or not, is the group "stock". Of those in `left_out` a row
    says the reason.
    """
    title = f"{table}: " if table else ""
    for name in only or LOADERS:
        if name in left_out:
            benchmark.add(title + name, cannot_run, table=table, reason=left_out[name])
            continue
        counts = [number for number in num_workers if number or name in _WITHOUT_WORKERS]
        if name == "DataLoader, tuned":
            counts = [number for number in counts if number]  # tuning is of workers
        if name == "FastLoader":
            counts = counts[:1]  # chooses itself
        for number in counts:
            kind = "" if name == "FastLoader" else f", {number} workers"
            benchmark.add(
                f"{title}{name}{kind}",
                prepare,
                table=table,
                group="stock" if name in STOCK else "",
                may_fail=name not in STOCK and name not in OURS,
                loader=name,
                make_dataset=make_dataset,
                batch_size=batch_size,
                num_workers=number,
                shuffle=shuffle,
                **given,
            )


FEW = (*STOCK, "StatefulDataLoader", *OURS)
"""Enough to show that a script runs; `bench_in_memory` tries more of the peers."""

SLOW_TO_START = {
    "Grain, processes": "its processes are started anew for each epoch, which takes seconds"
}
"""Of benchmarks with many epochs a run, in which this would take minutes."""

_WITHOUT_WORKERS = {
    "DataLoader, as it comes", "DataLoader, tuned", "StatefulDataLoader",
    "MONAI ThreadDataLoader", "Hugging Face datasets", "FastLoader", "FastLoader, same workers",
}  # fmt: skip
