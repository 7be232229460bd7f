"""Walks what an object holds in plain sight, with the path to each part."""

import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from fastloader.inspection._reach import slots_of, statics_of

__all__ = ["Part", "walk_attributes"]

LONGEST_CONTAINER = 64  # elements of a container that are looked at
MOST_PARTS = 2000

# The last ones lead to streams, handlers and other loggers, none of which is anybody's data.
_CLOSED = (
    str, bytes, int, float, ModuleType, logging.Logger, logging.Handler, threading.Thread,
)  # fmt: skip


class Part(NamedTuple):
    """What was met on a walk."""

    path: str
    """Like ``dataset.sources[2].file``, or the full name of a global variable."""
    value: Any
    is_static: bool
    """Whether it was reached by a class or a global variable, so made when a module was."""


def walk_attributes(obj: object, name: str, depth: int = 12) -> Iterator[Part]:
    """Yield an object and what its attributes, and the containers in them, hold.

    Nothing of the object is called. Looked into are ``__dict__``, slots and containers, the
    first elements of long ones; of functions what they carry along; of classes and functions of
    the user's own code the class attributes and global variables that they name.

    Args:
        obj: A dataset, say.
        name: What to call it in the paths.
        depth: Steps to follow from the object.

    Yields:
        Each object once, near ones first.
    """
    seen: set[int] = set()
    waiting = deque([(Part(name, obj, is_static=False), depth)])
    while waiting and len(seen) < MOST_PARTS:
        part, rest = waiting.popleft()
        if id(part.value) in seen:
            continue
        seen.add(id(part.value))
        yield part
        if rest <= 0 or isinstance(part.value, _CLOSED):
            continue
        for path, value in _parts(part.path, part.value):
            waiting.append((Part(path, value, part.is_static), rest - 1))
        owner = part.value if isinstance(part.value, FunctionType | type) else type(part.value)
        if owner is part.value or id(owner) not in seen:
            seen.add(id(owner))
            waiting.extend(
                (Part(path, value, is_static=True), rest - 1)
                for path, value in statics_of(owner)
            )


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in islice(value.items(), LONGEST_CONTAINER):
            yield f"{path}[{key!r}]", part
    elif isinstance(value, list | tuple | deque | AbstractSet):
        for number, part in enumerate(islice(value, LONGEST_CONTAINER)):
            yield f"{path}[{number}]", part
    elif isinstance(value, FunctionType):
        yield from _carried(path, value)
    elif isinstance(value, MethodType):
        yield f"{path}.__self__", value.__self__
        yield f"{path}.__func__", value.__func__
    elif isinstance(value, BuiltinMethodType):
        # Of a function that is its module, which is closed; classes in C hold nothing of one's own.
        if not isinstance(value.__self__, type):
            yield f"{path}.__self__", value.__self__
    elif not isinstance(value, type):
        yield from _attributes(path, value)


def _attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    for name, part in (*getattr(value, "__dict__", {}).items(), *slots_of(value)):
        if name == "_mgr":  # a table of pandas: its columns by kind
            yield from ((f"{path}.columns", array) for array in getattr(part, "arrays", ()))
        yield f"{path}.{name}", part
    if isinstance(value, partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords


def _carried(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield f"{path}.<closure>.{name}", cell.cell_contents
        except ValueError:  # assigned later, or deleted
            continue
    yield f"{path}.__defaults__", function.__defaults__
    yield f"{path}.__kwdefaults__", function.__kwdefaults__
