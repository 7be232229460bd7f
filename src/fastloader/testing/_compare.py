"""Compare samples and batches bit for bit, and say where they differ."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["difference", "memory_of", "num_bytes"]


def difference(expected: Any, found: Any, path: str = "") -> str | None:
    """Return what differs between two values and where, or None.

    Types, dtypes, shapes and all bits of tensors and arrays count: NaN equals NaN, and 0.0 is
    not -0.0. Lists and plain tuples count as alike, since collating makes lists of tuples.
    Objects of classes without an ``==`` of their own are alike if their attributes are; anything
    else that is unknown is compared with ``==``.

    Args:
        expected: A sample, a batch, or any part of one.
        found: What should be the same.
        path: Where both stand in the whole.
    """
    if type(expected) is not type(found) and {type(expected), type(found)} != {list, tuple}:
        return f"{path or 'it'} is a {type(found).__name__}, not a {type(expected).__name__}"
    if _is_plain_array(expected) and _is_plain_array(found):
        return _array_difference(expected, found, path or "it")
    ours, theirs = _parts(expected), _parts(found)
    if ours is None or theirs is None:
        same = expected == found or (expected != expected and found != found)  # noqa: PLR0124 - NaN
        return None if same else f"{path or 'it'} is {found!r:.80}, not {expected!r:.80}"
    if list(ours) != list(theirs):
        (kind, wanted), (_, given) = _makeup(expected), _makeup(found)
        return f"{path or 'it'} has {kind} {given}, not {wanted}"
    differences = (difference(ours[name], theirs[name], path + name) for name in ours)
    return next(filter(None, differences), None)


def num_bytes(value: Any) -> int:
    """Return the bytes of all tensors, arrays and byte strings in a sample.

    Args:
        value: A sample, or any part of one.
    """
    if _is_plain_array(value):
        return int(value.nbytes)
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(num_bytes, (_parts(value) or {}).values()))


def memory_of(value: Any) -> list[int]:
    """Return where the memory of each tensor in a batch begins; of views that of the whole.

    Args:
        value: A batch, or any part of one.
    """
    if isinstance(value, torch.Tensor) and _is_plain_array(value):
        return [value.untyped_storage().data_ptr()] if value.numel() else []
    return [where for part in (_parts(value) or {}).values() for where in memory_of(part)]


def _is_plain_array(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and not value.is_nested
    return isinstance(value, np.ndarray)


def _parts(value: Any) -> dict[str, Any] | None:
    """Return what a value consists of, by how it is reached; None if it is one thing."""
    if isinstance(value, torch.Tensor):
        return _tensors_in(value)
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | range):
        return {f"[{i}]": part for i, part in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {f".{name}": getattr(value, name) for name in names}
    return {f".{name}": part for name, part in _attributes(value).items()} or None


def _makeup(value: Any) -> tuple[str, Any]:
    """Return what tells values of other parts apart, and its name."""
    if isinstance(value, Mapping):
        return "keys", list(value)
    if isinstance(value, Sequence):
        return "length", len(value)
    return "parts", list(_parts(value) or ())


def _tensors_in(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the plain tensors that a nested or sparse one consists of."""
    if _is_plain_array(tensor):
        return {".strided": tensor}
    if tensor.is_nested:
        return {f"[{i}]": part for i, part in enumerate(tensor.unbind())}
    if tensor.layout is torch.sparse_coo:
        tensor, names = tensor.coalesce(), ["indices"]
    elif tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        names = ["crow_indices", "col_indices"]
    else:
        names = ["ccol_indices", "row_indices"]
    parts = {f".{name}()": getattr(tensor, name)() for name in [*names, "values"]}
    return {".shape": tuple(tensor.shape), **parts}


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object that by ``==`` equals itself alone; else nothing."""
    equals: Any = type(value).__eq__
    if equals is not object.__eq__ or value is None:
        return {}
    try:
        state: Any = value.__getstate__()
    except TypeError:  # a generator, a file
        return {}
    if isinstance(state, tuple) and len(state) == 2:  # of a class with slots
        state = {**(state[0] or {}), **state[1]}
    return state if isinstance(state, dict) else {}


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
