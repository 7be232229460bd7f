"""How many samples and bytes a batch of any structure holds, as far as it shows."""

import dataclasses
from collections.abc import Collection, Mapping
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
    passed: dict[int, Any] = {}  # what leads back to itself leads to no array
    while not isinstance(part, torch.Tensor | np.ndarray):
        if id(part) in passed:
            return otherwise
        passed[id(part)] = part
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
        batch: Any nesting of mappings, lists, tuples and dataclasses; a container that is in it
            several times counts once.
    """
    num_bytes = 0
    waiting: list[Any] = [batch]  # not by recursion: it may be of any depth
    passed: dict[int, Any] = {}  # parts may hold themselves
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            num_bytes += part.nbytes if part.layout is torch.strided else 0
        elif isinstance(part, np.ndarray):
            num_bytes += part.nbytes
        elif (parts := _parts_of(part)) and id(part) not in passed:
            passed[id(part)] = part
            waiting.extend(parts)
    return num_bytes


def _parts_of(batch: Any) -> Collection[Any]:
    if isinstance(batch, (list, tuple)):
        # Many strings or numbers, or a few fields: the first part tells.
        return () if batch and isinstance(batch[0], (str, bytes, int, float)) else batch
    if isinstance(batch, Mapping):  # which takes longer to tell
        return batch.values()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return vars(batch).values() if hasattr(batch, "__dict__") else ()
    return ()
