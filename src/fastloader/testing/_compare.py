"""Compare samples and batches bit for bit, and say where they differ."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["difference", "num_bytes"]


def difference(expected: Any, found: Any, path: str = "") -> str | None:
    """Return what differs between two values and where, or None.

    Types, dtypes, shapes and all bits of tensors and arrays count: NaN equals NaN, and 0.0 is
    not -0.0. Lists and plain tuples count as alike, since collating makes lists of tuples.
    Anything unknown is compared with ``==``.

    Args:
        expected: A sample, a batch, or any part of one.
        found: What should be the same.
        path: Where both stand in the whole.
    """
    if type(expected) is not type(found) and {type(expected), type(found)} != {list, tuple}:
        return f"{path or 'it'} is a {type(found).__name__}, not a {type(expected).__name__}"
    if isinstance(expected, torch.Tensor | np.ndarray):
        return _array_difference(expected, found, path or "it")
    if isinstance(expected, Mapping):
        if list(expected) != list(found):
            return f"{path or 'it'} has keys {list(found)}, not {list(expected)}"
        pairs = [(f"{path}[{key!r}]", expected[key], found[key]) for key in expected]
    elif isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        if len(expected) != len(found):
            return f"{path or 'it'} has length {len(found)}, not {len(expected)}"
        pairs = [
            (f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(expected, found, strict=True))
        ]
    elif dataclasses.is_dataclass(expected):
        names = [field.name for field in dataclasses.fields(expected)]
        pairs = [
            (f"{path}.{name}", getattr(expected, name), getattr(found, name)) for name in names
        ]
    else:
        same = expected == found or (expected != expected and found != found)  # noqa: PLR0124 - NaN
        return None if same else f"{path or 'it'} is {found!r:.80}, not {expected!r:.80}"
    return next(filter(None, (difference(a, b, where) for where, a, b in pairs)), None)


def num_bytes(value: Any) -> int:
    """Return the bytes of all tensors, arrays and byte strings in a sample.

    Args:
        value: A sample, or any part of one.
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    if isinstance(value, Sequence):
        return sum(map(num_bytes, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return sum(num_bytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    return 0


def _array_difference(expected: Any, found: Any, path: str) -> str | None:
    for name in ("dtype", "shape"):
        ours, theirs = getattr(expected, name), getattr(found, name)
        if ours != theirs:
            return f"{path} has {name} {theirs}, not {ours}"
    ours, theirs = (_bits(value) for value in (expected, found))
    if ours is None or theirs is None:  # object arrays
        return None if np.array_equal(expected, found) else f"{path} has other values"
    num_other = int((ours != theirs).any(axis=1).sum())
    return f"{path} differs in {num_other} of {len(ours)} values" if num_other else None


def _bits(array: Any) -> "np.ndarray[Any, Any] | None":
    """Return the bytes of each value, shape (values, bytes)."""
    if isinstance(array, torch.Tensor):
        flat = array.detach().cpu().contiguous().reshape(-1)
        return (
            flat.view(torch.uint8).numpy().reshape(flat.numel(), -1) if flat.numel() else _NONE
        )
    if array.dtype.hasobject:
        return None
    flat_bytes = np.frombuffer(array.tobytes(), np.uint8)
    return flat_bytes.reshape(array.size, -1) if array.nbytes else _NONE


_NONE = np.empty((0, 1), np.uint8)
