"""How many samples and bytes a batch of any structure holds, as far as it shows."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fastloader.typing import Batch

__all__ = ["count_batch_bytes", "count_samples"]


def count_samples(batch: Batch, otherwise: int) -> int:
    """Return the length of the first axis of the first array in a batch.

    Args:
        batch: Any nesting of tensors and arrays.
        otherwise: Returned where no array is found.
    """
    part = batch
    while not isinstance(part, torch.Tensor | np.ndarray):
        if isinstance(part, list | tuple) and part:
            if isinstance(part[0], str | bytes):
                return len(part)
            part = part[0]
        elif isinstance(part, Mapping) and part:
            part = next(iter(part.values()))
        else:
            return otherwise
    return len(part) if part.ndim else otherwise


def count_batch_bytes(batch: Batch) -> int:
    """Return the bytes of all tensors and arrays in a batch; of what hides them, none.

    Args:
        batch: Any nesting of mappings, lists, tuples and dataclasses.
    """
    if isinstance(batch, torch.Tensor):
        return batch.nbytes if batch.layout is torch.strided else 0
    if isinstance(batch, np.ndarray):
        return batch.nbytes
    return sum(map(count_batch_bytes, _parts_of(batch)))


def _parts_of(batch: Any) -> Iterable[Any]:
    if isinstance(batch, Mapping):
        return batch.values()
    if isinstance(batch, list | tuple):
        # Many strings or numbers, or a few fields: the first part tells.
        return () if batch and isinstance(batch[0], str | bytes | int | float) else batch
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return vars(batch).values() if hasattr(batch, "__dict__") else ()
    return ()
