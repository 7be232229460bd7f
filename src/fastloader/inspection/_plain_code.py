"""Whether reading samples of a dataset can leave nothing behind in the process: read off its code."""

import builtins
import dis
import inspect
import math
from collections.abc import Iterator
from functools import lru_cache
from operator import attrgetter
from types import CodeType, FunctionType, GetSetDescriptorType, ModuleType, NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastloader._torch_internals import (
    collate,
    default_collate_fn_map,
    draws_on_cpu_by_default,
)

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
        *(
            abs,
            bool,
            complex,
            dict,
            divmod,
            enumerate,
            float,
            int,
            iter,
            len,
            list,
            max,
            min,
            pow,
            range,
        ),
        *(reversed, round, set, slice, sorted, str, sum, tuple, zip),
        *(torch.arange, torch.as_tensor, torch.cat, torch.eye, torch.from_numpy, torch.full),
        *(torch.linspace, torch.ones, torch.stack, torch.tensor, torch.zeros),
        *(np.arange, np.array, np.asarray, np.eye, np.full, np.ones),
        *(math.ceil, math.floor, math.sqrt),
        *(np.zeros, np.bool_, np.uint8, np.int16, np.int32, np.int64, np.float32, np.float64),
    )
}
"""What makes new values and does nothing else, whatever plain values it gets. Those of NumPy that write
to one of their arguments are not among them."""

_KEYWORDS = frozenset({"axis", "dim", "dtype", "fill_value", "key", "shape", "size", "strict"})
"""Of calls; unlike ``out``, which is written to, or ``device``."""

_ATTRIBUTES = frozenset({
    *("T", "dtype", "imag", "ndim", "real", "shape", "start", "step", "stop"),
    *("astype", "bool", "byte", "clone", "contiguous", "copy", "double", "endswith", "flatten"),
    *("float", "get", "half", "int", "item", "items", "join", "keys", "long", "lower", "numpy"),
    *("permute", "reshape", "size", "split", "startswith", "strip", "tolist", "transpose"),
    *("unsqueeze", "upper", "values", "view"),
})
"""Attributes and methods that change nothing, of whichever plain value they are."""

_UNUSUAL = (
    inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
)
"""Flags of code that is not a simple function."""

_HARMLESS = frozenset({
    *("BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR", "BUILD_CONST_KEY_MAP", "BUILD_LIST"),
    *("BUILD_MAP", "BUILD_SET", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE", "CALL"),
    *("CALL_KW", "COMPARE_OP", "CONTAINS_OP", "CONVERT_VALUE", "COPY", "DICT_UPDATE"),
    *("END_FOR", "FORMAT_SIMPLE", "FORMAT_VALUE", "FOR_ITER", "GET_ITER", "GET_LEN"),
    *("IS_OP", "JUMP_BACKWARD", "JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP"),
    *("JUMP_IF_TRUE_OR_POP", "KW_NAMES", "LIST_EXTEND", "LIST_TO_TUPLE"),
    *("LOAD_ASSERTION_ERROR", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW"),
    *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST"),
    *("LOAD_SMALL_INT", "NOP", "NOT_TAKEN", "POP_ITER", "POP_JUMP_BACKWARD_IF_FALSE"),
    *("POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
    *("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_NONE"),
    *("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE"),
    *("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_TRUE", "POP_TOP", "PRECALL"),
    *("PUSH_NULL", "RAISE_VARARGS", "RESUME", "RETURN_CONST", "RETURN_VALUE", "SET_UPDATE"),
    *("STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "SWAP", "TO_BOOL"),
    *("UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_POSITIVE", "UNPACK_EX"),
    *("UNPACK_SEQUENCE",),
})
"""Operations that touch nothing but local variables and new values, of any version of Python."""

_HARMLESS_IN_STREAMS = frozenset({
    *("CLEANUP_THROW", "END_SEND", "GET_YIELD_FROM_ITER", "JUMP_BACKWARD_NO_INTERRUPT"),
    *("RERAISE", "RETURN_GENERATOR", "SEND", "YIELD_VALUE"),
})
"""Operations of a generator alone."""

_MODULES_OF_STREAMS = (torch.utils, torch.utils.data)

_OF_WORKER_INFO = frozenset({"id", "num_workers"})
"""What a stream that is read whole, here or by one worker, may ask to find its share."""

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
    except _NotPlainError:
        return False
    return True


class _NotPlainError(Exception):
    """Something is not known to be harmless; never leaves this module."""


def _require(is_harmless: bool) -> None:
    if not is_harmless:
        raise _NotPlainError


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
            _NotPlainError: If anything is not known to be harmless.
        """
        if (id(function), is_method) in self._seen:
            return
        self._seen.add((id(function), is_method))
        lookups = _lookups(function.__code__, is_method, self._is_stream)
        if lookups is None:
            raise _NotPlainError
        for default in (
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ):
            self._require_plain(default)
        for start, attributes in lookups:
            known = self._dataset if start is None else _global(function, start)
            for name in attributes:
                known = self._attribute(known, name)
            self._use(known)

    def _attribute(self, known: Any, name: str) -> Any:
        if known is self._dataset:
            return self._own(name)
        if isinstance(known, ModuleType):
            _require(known in self._modules and name in vars(known))
            return vars(known)[name]
        if known is not _UNKNOWN:
            self._require_plain(known)
        _require(name in _ATTRIBUTES)
        return _UNKNOWN

    def _own(self, name: str) -> Any:
        """Return an attribute of the dataset that is found without running code."""
        of_class = _of_class(type(self._dataset), name)
        own = vars(self._dataset)
        if of_class is _UNKNOWN:
            _require(name in own)
            return own[name]
        _require(name not in own)
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
            _require(id(known) in _CALLABLES or _is_error(known))
        else:
            self._require_plain(known)

    def _require_plain(self, value: Any, depth: int = 0) -> None:
        kind = type(value)
        if kind in _SCALARS or (isinstance(value, np.generic) and kind.__module__ == "numpy"):
            return
        if kind is np.ndarray:
            _require(not value.dtype.hasobject)
        elif kind is torch.Tensor:
            is_usual = value.layout is torch.strided and not value.requires_grad
            _require(is_usual and value.device.type == "cpu")
        else:
            _require((kind is dict or kind in _CONTAINERS) and depth < _MOST_DEPTH)
            self._num_left -= len(value)
            _require(self._num_left >= 0)
            parts = (*value, *value.values()) if kind is dict else value
            if not _SCALARS.issuperset(map(type, parts)):  # labels are numbers, as a rule
                for part in parts:
                    self._require_plain(part, depth + 1)


class _Lookup(NamedTuple):
    """What code looks up before it uses it, such as ``self.table.shape`` or ``torch.full``."""

    start: str | None
    """A global name; None for the dataset."""
    attributes: tuple[str, ...]


@lru_cache(maxsize=256)
def _lookups(code: CodeType, is_method: bool, is_stream: bool) -> tuple[_Lookup, ...] | None:
    """Return what code looks up of objects that are known before it runs, in order.

    Args:
        code: Of a function.
        is_method: Whether its first argument is the dataset.
        is_stream: Whether it may be a generator.

    Returns:
        All that is left to judge; None if the code is harmful whatever it looks up.
    """
    try:
        return tuple(_read_lookups(code, is_method, is_stream))
    except _NotPlainError:
        return None


def _read_lookups(code: CodeType, is_method: bool, is_stream: bool) -> Iterator[_Lookup]:
    unusual = _UNUSUAL & ~inspect.CO_GENERATOR if is_stream else _UNUSUAL
    attributes = _ATTRIBUTES | _OF_WORKER_INFO if is_stream else _ATTRIBUTES
    _require(not code.co_flags & unusual and not code.co_freevars and not code.co_cellvars)
    owner = code.co_varnames[0] if is_method and code.co_argcount else None
    lookup: _Lookup | None = None
    before: Any = None
    for step in dis.get_instructions(code):
        is_attribute = step.opname in {"LOAD_ATTR", "LOAD_METHOD"}
        if is_attribute and lookup is not None and not step.is_jump_target:
            lookup = _Lookup(lookup.start, (*lookup.attributes, step.argval))
            continue
        if lookup is not None:
            yield lookup
            lookup = None
        if is_attribute:
            _require(step.argval in attributes)
        elif step.opname == "LOAD_GLOBAL":
            lookup = _Lookup(step.argval, ())
        elif not is_stream or not _is_of_generator(step):
            _require_harmless(step, code.co_consts, before)
            if owner is not None and _loads(step, owner):
                lookup = _Lookup(None, ())
        before = step.argval


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
    _require(name in names)
    return names[name]


def _is_error(known: Any) -> bool:
    return (
        isinstance(known, type)
        and issubclass(known, Exception)
        and vars(builtins).get(known.__name__) is known
    )


def _require_harmless(step: dis.Instruction, constants: tuple[Any, ...], before: Any) -> None:
    """Look at a step that loads neither a global nor an attribute.

    Args:
        step: The step.
        constants: Of the code.
        before: Argument of the step before.
    """
    _require(step.opname in _HARMLESS)
    if step.opname == "BINARY_OP":
        _require(not step.argrepr.endswith("="))  # in place, maybe of what the dataset holds
    elif step.opname in {"KW_NAMES", "CALL_KW"}:  # before Python 3.13, and since
        names = constants[step.arg or 0] if step.opname == "KW_NAMES" else before
        _require(type(names) is tuple and _KEYWORDS.issuperset(names))


def _is_of_generator(step: dis.Instruction) -> bool:
    is_stop = step.opname == "CALL_INTRINSIC_1" and "STOPITERATION" in step.argrepr
    return is_stop or step.opname in _HARMLESS_IN_STREAMS


def _loads(step: dis.Instruction, owner: str) -> bool:
    """Return whether a step loads the dataset, as the last of what it does."""
    if "_FAST" not in step.opname:
        return False
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    actions = [word for word in step.opname.split("_") if word in {"LOAD", "STORE"}]
    for number, (name, action) in enumerate(zip(names, actions, strict=True), start=1):
        if name == owner:
            _require(action == "LOAD" and number == len(names))
            return True
    return False
