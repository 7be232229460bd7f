"""Whether reading samples of a dataset can leave nothing behind in the process: read off its code."""

import builtins
import math
from operator import attrgetter
from types import FunctionType, GetSetDescriptorType, ModuleType, NoneType
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastloader._torch_internals import (
    collate,
    default_collate_fn_map,
    draws_on_cpu_by_default,
)
from fastloader.inspection._code_lookups import ATTRIBUTES, NotPlainError, lookups, require

__all__ = ["has_plain_collate", "is_plain", "is_plain_stream"]

_MOST_VALUES = 4096
"""Values in containers that are looked at; larger ones are not worth the time."""

_MOST_DEPTH = 8
"""Of containers within each other."""

_SCALARS = {int, float, complex, bool, str, bytes, NoneType, range, torch.dtype}
_CONTAINERS = {list, tuple, set, frozenset}
_MODULES = (torch, np, math)

_CALLABLES = {
    id(one)
    for one in (
        *(abs, bool, complex, dict, divmod, enumerate, float, int, iter, len, list, max, min),
        *(pow, range, reversed, round, set, slice, sorted, str, sum, tuple, zip),
        *(torch.arange, torch.as_tensor, torch.cat, torch.eye, torch.from_numpy, torch.full),
        *(torch.linspace, torch.ones, torch.stack, torch.tensor, torch.zeros),
        *(np.arange, np.array, np.asarray, np.eye, np.full, np.ones),
        *(math.ceil, math.floor, math.sqrt),
        *(np.zeros, np.bool_, np.uint8, np.int16, np.int32, np.int64, np.float32, np.float64),
    )
}
"""What makes new values and does nothing else, whatever plain values it gets. Those of NumPy that write
to one of their arguments are not among them."""

_MODULES_OF_STREAMS = (torch.utils, torch.utils.data)

_PLAIN_LOOKUP = vars(object)["__getattribute__"]

_builtins_of = attrgetter("__builtins__")
"""Of a function; stubs of functions do not always have it."""

_UNKNOWN = object()
"""A plain value that is not known before the code runs."""


_TORCHS_COLLATE = {
    kind: function
    for kind, function in default_collate_fn_map.items()
    if isinstance(function, FunctionType) and function.__module__ == collate.__module__
}


def has_plain_collate() -> bool:
    """Tell whether torch's default collate calls no functions but its own."""
    return default_collate_fn_map == _TORCHS_COLLATE


def is_plain(dataset: Any) -> bool:
    """Tell whether it makes no difference in which process samples of a dataset are read.

    Its ``__getitem__`` may only compute new values from plain ones: numbers, strings, arrays and
    tensors, and containers of these. It stores nothing, opens nothing, draws nothing and calls
    nothing but other such code and a few functions of torch, NumPy and Python. Whatever is not
    known to be harmless is taken for harmful, so that most code is not plain.

    Args:
        dataset: Map-style dataset, whose indices are plain.
    """
    several = _of_class(type(dataset), "__getitems__")
    return (several is _UNKNOWN or several is None) and _is_plain(
        dataset, "__getitem__", is_stream=False
    )


def is_plain_stream(dataset: Any) -> bool:
    """Tell whether it makes no difference in which process an iterable dataset is read, by one alone.

    As `is_plain`, for code that begins anew with each pass: its ``__iter__`` may be a generator, or return an
    iterator that it has made of plain values, and it may ask which share of the samples is its own.

    Args:
        dataset: Iterable dataset.
    """
    has_state = any(
        _of_class(type(dataset), name) is not _UNKNOWN for name in ("__next__", "state_dict")
    )
    return not has_state and _is_plain(dataset, "__iter__", is_stream=True)


def _is_plain(dataset: Any, method: str, *, is_stream: bool) -> bool:
    kind = type(dataset)
    function = _of_class(kind, method)
    if (
        not isinstance(function, FunctionType)
        or _of_class(kind, "__getattribute__") is not _PLAIN_LOOKUP
        or type(_of_class(kind, "__dict__")) is not GetSetDescriptorType
        or not draws_on_cpu_by_default()
    ):
        return False
    try:
        _Reader(dataset, is_stream=is_stream).read(function, is_method=True)
    except NotPlainError:
        return False
    return True


class _Method:
    """A function of the dataset's class, to be called with the dataset."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function


class _Reader:
    """Reads the code that runs for a sample, or for a stream of them, each function once."""

    def __init__(self, dataset: Any, *, is_stream: bool = False) -> None:
        self._dataset = dataset
        self._is_stream = is_stream
        self._modules = _MODULES + _MODULES_OF_STREAMS if is_stream else _MODULES
        self._seen: set[tuple[int, bool]] = set()
        self._num_left = _MOST_VALUES

    def read(self, function: FunctionType, *, is_method: bool) -> None:
        """Go through a function: known objects, step by step, until they are used as values.

        Args:
            function: Of Python.
            is_method: Whether its first argument is the dataset; all others are plain values.

        Raises:
            NotPlainError: If anything is not known to be harmless.
        """
        if (id(function), is_method) in self._seen:
            return
        self._seen.add((id(function), is_method))
        found = lookups(function.__code__, is_method, self._is_stream)
        if found is None:
            raise NotPlainError
        for default in (
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ):
            self._require_plain(default)
        for start, attributes in found:
            known = self._dataset if start is None else _global(function, start)
            for name in attributes:
                known = self._attribute(known, name)
            self._use(known)

    def _attribute(self, known: Any, name: str) -> Any:
        if known is self._dataset:
            return self._own(name)
        if isinstance(known, ModuleType):
            require(known in self._modules and name in vars(known))
            return vars(known)[name]
        if known is not _UNKNOWN:
            self._require_plain(known)
        require(name in ATTRIBUTES)
        return _UNKNOWN

    def _own(self, name: str) -> Any:
        """Return an attribute of the dataset that is found without running code."""
        of_class = _of_class(type(self._dataset), name)
        own = vars(self._dataset)
        if of_class is _UNKNOWN:
            require(name in own)
            return own[name]
        require(name not in own)
        return _Method(of_class) if isinstance(of_class, FunctionType) else of_class

    def _use(self, known: Any) -> None:
        """Let an object be a value: called, given to others, or returned."""
        if known is _UNKNOWN or (self._is_stream and known is get_worker_info):
            return
        if isinstance(known, _Method):
            self.read(known.function, is_method=True)
        elif isinstance(known, FunctionType) and id(known) not in _CALLABLES:
            self.read(known, is_method=False)
        elif callable(known):
            require(id(known) in _CALLABLES or _is_error(known))
        else:
            self._require_plain(known)

    def _require_plain(self, value: Any, depth: int = 0) -> None:
        kind = type(value)
        if kind in _SCALARS or (isinstance(value, np.generic) and kind.__module__ == "numpy"):
            return
        if kind is np.ndarray:
            require(not value.dtype.hasobject)
        elif kind is torch.Tensor:
            is_usual = value.layout is torch.strided and not value.requires_grad
            require(is_usual and value.device.type == "cpu")
        else:
            require((kind is dict or kind in _CONTAINERS) and depth < _MOST_DEPTH)
            self._num_left -= len(value)
            require(self._num_left >= 0)
            parts = (*value, *value.values()) if kind is dict else value
            if not _SCALARS.issuperset(map(type, parts)):  # labels are numbers, as a rule
                for part in parts:
                    self._require_plain(part, depth + 1)


def _of_class(kind: type, name: str) -> Any:
    """Return an attribute of a class as it is written there; of an instance nothing is looked at."""
    for one in kind.__mro__:
        if name in vars(one):
            return vars(one)[name]
    return _UNKNOWN


def _global(function: FunctionType, name: str) -> Any:
    names = function.__globals__
    if name not in names:  # the function's own, which may be others than Python's
        names = _builtins_of(function)
    require(name in names)
    return names[name]


def _is_error(known: Any) -> bool:
    return (
        isinstance(known, type)
        and issubclass(known, Exception)
        and vars(builtins).get(known.__name__) is known
    )
