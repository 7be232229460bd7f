"""Puts batches of different parts together, each sample in its place."""

from collections.abc import Sequence
from typing import Any

import torch

from fastloader.tensors._buffers import empty_batch
from fastloader.tensors._gather import as_bytes
from fastloader.typing import Batch

__all__ = ["UnlikeBatchesError", "merge_batches"]


class UnlikeBatchesError(Exception):
    """Parts of a batch that only collating the samples can put together."""


def merge_batches(batches: Sequence[Any], places: Sequence[torch.Tensor]) -> Batch:
    """Put batches of different parts together, each sample in its place.

    Args:
        batches: The parts; samples along the first axis.
        places: Positions of the samples of each part in the result, int64.

    Raises:
        UnlikeBatchesError: If the batches differ in more than their length.
    """
    first = batches[0]
    kind = type(first)
    if any(type(batch) is not kind for batch in batches):
        raise UnlikeBatchesError
    if kind is torch.Tensor:
        return _merge_tensors(batches, places)
    if kind is dict and all(batch.keys() == first.keys() for batch in batches):
        return {
            name: merge_batches([batch[name] for batch in batches], places) for name in first
        }
    is_named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if (kind is list or is_named) and all(len(batch) == len(first) for batch in batches):
        fields = [merge_batches(field, places) for field in zip(*batches, strict=True)]
        return kind(*fields) if is_named else fields
    raise UnlikeBatchesError


def _merge_tensors(
    batches: Sequence[torch.Tensor], places: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Do so with tensors.

    Raises:
        UnlikeBatchesError: If shapes or types of the samples differ.
    """
    first = batches[0]
    if any(
        batch.shape[1:] != first.shape[1:]
        or batch.dtype != first.dtype
        or batch.device.type != "cpu"
        or batch.requires_grad
        or not batch.is_contiguous()
        for batch in batches
    ):
        raise UnlikeBatchesError
    length = sum(map(len, batches))
    merged = empty_batch((length, *first.shape[1:]), first.dtype)
    if merged.numel():
        # By NumPy, in one thread: torch's spin while they wait for each other.
        rows = as_bytes(merged)
        for batch, place in zip(batches, places, strict=True):
            rows[place.numpy()] = as_bytes(batch)
    return merged
