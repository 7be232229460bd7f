"""What a dataset is like, in terms that are the same in the next run."""

import hashlib
import sysconfig
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from fastloader.inspection._lengths import length_if_known

__all__ = ["describe"]

_DEPTH = 5
_LONGEST = 4
"""Elements of a container that are looked at: nested ones multiply."""

_LONG_TEXT = 1000

_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)
"""Folders of code that is not the caller's."""

_PASSING = frozenset({"epoch", "_epoch"})
"""Attributes that tell how far a run is, not what the dataset is like."""


def describe(obj: object) -> Any:
    """Return types, sizes and plain values that make up an object, ready for JSON.

    Arrays and tensors are told by shape and dtype, containers by their length and first
    elements, functions by name, everything else by its type, its length and what it would
    pickle. Of functions and classes of the caller's own the code counts, too. So a dataset made in the
    same way in another process, script or notebook is described alike.

    Args:
        obj: A dataset, say. Nothing of it is read but its length and attributes.
    """
    return _of(obj, _DEPTH)


def _of(obj: Any, depth: int) -> Any:
    if obj is None or isinstance(obj, bool | int | float):
        return obj
    if isinstance(obj, str | bytes | PurePath):
        text = str(obj)
        return text if len(text) <= _LONG_TEXT else ["text", len(text)]
    if isinstance(obj, torch.Tensor | np.ndarray):
        return ["array", str(obj.dtype), list(obj.shape)]
    if isinstance(obj, type | FunctionType | BuiltinFunctionType | MethodType):
        return [obj.__qualname__, *_code_of(obj)]
    # Without its module: a script is __main__ when it is run and not when it is imported.
    name = type(obj).__qualname__
    if depth == 0:
        return name
    return [name, length_if_known(obj), _parts(obj, depth - 1), *_code_of(type(obj))]


def _parts(obj: Any, depth: int) -> Any:
    if isinstance(obj, AbstractSet):
        return None  # in no order
    if isinstance(obj, list | tuple):
        return [_of(element, depth) for element in obj[:_LONGEST]]
    is_mapping = isinstance(obj, Mapping)
    named = islice(obj.items(), _LONGEST) if is_mapping else sorted(_state_of(obj).items())
    return {str(key): _of(value, depth) for key, value in named if key not in _PASSING}


def _state_of(obj: Any) -> dict[str, Any]:
    """Return what an object would pickle: without what it opens when it is first used."""
    try:
        state = obj.__getstate__()
    except Exception:  # noqa: BLE001 - what cannot be pickled may raise anything
        state = getattr(obj, "__dict__", None)
    if not isinstance(state, dict):
        return {}
    return {str(key): value for key, value in state.items()}


def _code_of(owner: Any) -> list[str]:
    """Return a digest of a function's code, or of that of all methods; nothing of a library's."""
    if isinstance(owner, type):
        owned = [value for cls in owner.__mro__ for value in vars(cls).values()]
    else:
        owned = [getattr(owner, "__func__", owner)]
    codes = [one.__code__ for one in owned if isinstance(one, FunctionType)]
    # By their files: a script has another name when it is run than when it is imported.
    own = [code for code in codes if not code.co_filename.startswith(_LIBRARIES)]
    return [hashlib.sha256(repr([*map(_told, own)]).encode()).hexdigest()[:16]] if own else []


def _told(constant: Any) -> Any:
    """Return what code does, without where it stands; of other constants what they are."""
    if isinstance(constant, CodeType):
        return constant.co_code, constant.co_names, [*map(_told, constant.co_consts)]
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
