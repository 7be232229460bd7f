"""Global variables as they are in the consumer, for workers that import the user's modules anew."""

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from fastloader.inspection._attributes import walk_attributes
from fastloader.inspection._reach import statics_of

__all__ = ["collect_variables", "restore_variables"]

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_MOST_ELEMENTS = 1000
_DEPTH = 5


def collect_variables(parts: object) -> dict[str, Any]:
    """Return the global variables and class attributes that code reaches, by their full names.

    Only plain values, containers and namespaces of these: what somebody sets when a program starts
    and a module that is imported anew would not have.

    Args:
        parts: Dataset, collate_fn and what else is called in workers.
    """
    found: dict[str, Any] = {}
    met: set[int] = set()
    for _, part, _ in walk_attributes(parts, "loader"):
        owner = part if isinstance(part, FunctionType | type) else type(part)
        if id(owner) in met:
            continue
        met.add(id(owner))
        found |= {name: value for name, value in statics_of(owner) if _is_plain(value, _DEPTH)}
    return found


def restore_variables(variables: Mapping[str, Any]) -> None:
    """Give variables of this process the values that they have in the consumer.

    Args:
        variables: From `collect_variables`, there.
    """
    for name, value in variables.items():
        path = name.split(".")
        for length in range(len(path) - 1, 0, -1):
            module = sys.modules.get(".".join(path[:length]))
            if module is not None:
                _set(module, path[length:], value)
                break


def _set(module: ModuleType, path: list[str], value: Any) -> None:
    if len(path) == 1:
        for namespace in _namespaces(module):
            if namespace.get(path[0], _set) != value:
                namespace[path[0]] = value
        return
    holder: Any = module
    for name in path[:-1]:
        holder = getattr(holder, name, None)
    if holder is not None and getattr(holder, path[-1], _set) != value:
        setattr(holder, path[-1], value)


def _namespaces(module: ModuleType) -> list[dict[str, Any]]:
    """Return where the code of a module looks for its variables.

    A main script that multiprocessing runs again has two: the module is a copy of what its
    functions know.
    """
    found = [vars(module)]
    for value in tuple(vars(module).values()):
        members = tuple(vars(value).values()) if isinstance(value, type) else (value,)
        for function in members:
            is_ours = isinstance(function, FunctionType) and (
                function.__module__ == module.__name__
            )
            if is_ours and all(function.__globals__ is not known for known in found):
                found.append(function.__globals__)
    return found


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, _SCALARS):
        return True
    inner: Iterable[object]
    if type(value) in {Namespace, SimpleNamespace}:
        inner = vars(value).values()
    elif type(value) is dict:
        inner = (*value.keys(), *value.values())
    elif type(value) in {list, tuple, set, frozenset}:
        inner = tuple(value)  # type: ignore[arg-type]  # one of these
    else:
        return False
    parts = tuple(inner)
    is_small = len(parts) <= _MOST_ELEMENTS
    return depth > 0 and is_small and all(_is_plain(part, depth - 1) for part in parts)
