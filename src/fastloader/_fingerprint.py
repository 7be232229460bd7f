"""Tells whether an object has changed since workers got their copies of it."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from fastloader.typing import LiveDataset

__all__ = ["fingerprint"]

DEPTH = 5
LONGEST = 64
SMALL_BYTES = 4096
SCALARS = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(obj: object) -> Any:
    """Return something that compares unequal if `obj` has changed in a way that is cheap to see.

    Attributes are compared by value as far as they are small, arrays by identity, tensors by
    identity and their count of in-place changes. Plain values of a `LiveDataset` are left out:
    they reach the workers by themselves.

    Args:
        obj: A dataset, say. Nothing is called on it, and it is not kept alive.
    """
    return _of(obj, DEPTH)


def _of(obj: object, depth: int) -> Any:
    if isinstance(obj, SCALARS):
        return obj if not isinstance(obj, str | bytes) or len(obj) <= SMALL_BYTES else hash(obj)
    if isinstance(obj, torch.Tensor):
        # Inference tensors do not count their in-place changes.
        return id(obj), None if obj.is_inference() else obj._version  # noqa: SLF001 - documented
    if isinstance(obj, np.ndarray):
        small = obj.nbytes <= SMALL_BYTES and not obj.dtype.hasobject
        return (id(obj), obj.shape, obj.tobytes()) if small else (id(obj), obj.shape)
    if depth == 0 or isinstance(obj, type):
        return id(obj)
    if isinstance(obj, Mapping | list | tuple | AbstractSet):
        return _of_container(obj, depth)
    return _of_function(obj, depth) or _of_attributes(obj, depth)


def _of_function(obj: object, depth: int) -> Any:
    """Return what a callable that carries objects along carries, None for all else."""
    if isinstance(obj, MethodType):
        return obj.__func__, _of(obj.__self__, depth - 1)
    if isinstance(obj, partial):
        return tuple(_of(part, depth - 1) for part in (obj.func, obj.args, obj.keywords))
    if isinstance(obj, FunctionType) and obj.__closure__:
        return id(obj), tuple(_of_cell(cell, depth - 1) for cell in obj.__closure__)
    return None


def _of_cell(cell: CellType, depth: int) -> Any:
    try:
        return _of(cell.cell_contents, depth)
    except ValueError:  # a variable without a value yet
        return None


def _of_container(obj: Any, depth: int) -> Any:
    if len(obj) > LONGEST:
        return id(obj), len(obj)
    if isinstance(obj, Mapping):
        return type(obj), tuple((_of(k, 1), _of(v, depth - 1)) for k, v in obj.items())
    if isinstance(obj, AbstractSet):
        return type(obj), frozenset(id(element) for element in obj)
    return type(obj), tuple(_of(element, depth - 1) for element in obj)


def _of_attributes(obj: object, depth: int) -> Any:
    attributes = getattr(obj, "__dict__", None)
    if not isinstance(attributes, dict):
        return id(obj)
    is_live = isinstance(obj, LiveDataset)
    values = tuple(
        (name, _of(value, depth - 1))
        for name, value in attributes.items()
        if not (is_live and isinstance(value, SCALARS))
    )
    return id(obj), type(obj), values
