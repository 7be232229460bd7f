"""What settings need to know of a dataset and its sampler."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import (
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    default_collate,
)

from fastloader.datasets._batched import as_batched, wants_workers
from fastloader.inspection._attributes import walk_attributes
from fastloader.settings._inputs import DatasetTraits

__all__ = ["describe_dataset", "is_data_pipe"]

_DATA_PIPES = {IterDataPipe, MapDataPipe}


def describe_dataset(
    dataset: Any,
    *,
    batch_size: int | None = 1,
    sampler: Iterable[Any] | None = None,
    batch_sampler: Iterable[Any] | None = None,
    drop_last: bool = False,
    collate_fn: Any = None,
) -> DatasetTraits:
    """Look at a dataset without reading a sample.

    Args:
        dataset: Any dataset.
        batch_size: As given to the loader, like all that follow.
        sampler: As given.
        batch_sampler: As given.
        drop_last: As given.
        collate_fn: As given.
    """
    is_iterable = isinstance(dataset, IterableDataset)
    has_batches = batch_size is not None or batch_sampler is not None
    # Without CUDA in use there are no tensors of it to look for.
    on_device = torch.cuda.is_initialized() and any(  # type: ignore[no-untyped-call]
        isinstance(part, torch.Tensor) and part.is_cuda
        for _, part, _ in walk_attributes(dataset, "dataset", depth=3)
    )
    tied = None
    if on_device:
        tied = "the dataset holds CUDA tensors, which forked workers cannot use"
    elif is_data_pipe(dataset):
        tied = "a DataPipe divides its data by rules of its own"
    batched = None
    if has_batches and collate_fn in {None, default_collate}:
        batched = as_batched(dataset)
    return DatasetTraits(
        is_iterable=is_iterable,
        batched=batched is not None,
        wants_workers=batched is not None and wants_workers(batched),
        is_sequence=type(dataset) in {list, tuple, range},
        num_shards=_read_num_shards(dataset) if is_iterable else None,
        num_batches=(
            None
            if is_iterable
            else _count_batches(dataset, batch_size, sampler, batch_sampler, drop_last)
        ),
        tied=tied,
        on_device=on_device,
    )


def is_data_pipe(dataset: Any) -> bool:
    """Tell whether torch's own iterators must be used, which shard and seed these."""
    # Not by isinstance, which asks each of their many subclasses for a class that it has not met.
    return not _DATA_PIPES.isdisjoint(type(dataset).__mro__)


def _read_num_shards(dataset: Any) -> int | None:
    """Return what Hugging Face's and other streams declare to divide among workers."""
    for name in ("num_shards", "n_shards"):
        value = getattr(dataset, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _count_batches(
    dataset: Any,
    batch_size: int | None,
    sampler: Iterable[Any] | None,
    batch_sampler: Iterable[Any] | None,
    drop_last: bool,
) -> int | None:
    if batch_sampler is not None:
        return _length(batch_sampler)
    num_samples = _length(dataset if sampler is None else sampler)
    if num_samples is None or batch_size is None:
        return num_samples
    if type(batch_size) is not int or batch_size < 1:
        return None  # torch refuses it with a message of its own
    return num_samples // batch_size if drop_last else -(-num_samples // batch_size)


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # noqa: BLE001 - no length is no reason to refuse a dataset
        return None
