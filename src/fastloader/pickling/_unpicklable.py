"""Find the part of an object that cannot be pickled, and the path that leads to it."""

import copyreg
import functools
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastloader.inspection._reach import global_names

__all__ = ["find_unpicklable"]

_MAX_DEPTH = 60
_MAX_CHILDREN = 100_000  # of one object: a search in an error message must end


def find_unpicklable(
    obj: object,
    name: str,
    can_travel: Callable[[object], bool],
    *,
    classes_by_name: bool = False,
) -> tuple[str, object]:
    """Return the path and value of the deepest part that cannot travel.

    Looks where pickle looks: into containers, what `__reduce_ex__` gives (so `__getstate__`
    and slots), functions' closures and globals, and class bodies. Each part is tried by
    itself, and those that fail are entered.

    Args:
        obj: An object for which `can_travel` is false.
        name: What to call `obj` in the path, for instance `"dataset"`.
        can_travel: Tells whether an object can be pickled.
        classes_by_name: Whether classes travel by their names. Then nothing in one is to blame, and of an
            object of one that nobody else can name it is the object itself.

    Returns:
        For instance `("dataset.transforms[2].fn", <unlocked _thread.lock object>)`; `name` and
        `obj` themselves if no part alone is to blame.
    """
    entered: dict[int, object] = {id(obj): obj}  # holds its values, so that ids stay theirs

    def search(parent: object, path: str, depth: int) -> tuple[str, object] | None:
        fails_by_cycle = False
        for step, child in itertools.islice(_parts(parent), _MAX_CHILDREN):
            if can_travel(child) or (classes_by_name and isinstance(child, type)):
                continue
            if id(child) in entered:
                fails_by_cycle = True  # it leads back up: the fault is on another branch
                continue
            entered[id(child)] = child
            found = search(child, path + step, depth + 1) if depth < _MAX_DEPTH else None
            if found is not None:
                return found
        return None if fails_by_cycle else (path, parent)

    return search(obj, name, 0) or (name, obj)


def _parts(obj: object) -> Iterator[tuple[str, object]]:
    """Yield what pickle would go on to, with the text that leads there from `obj`."""
    if isinstance(obj, functools.partial):
        yield ".func", obj.func
        yield ".args", obj.args
        yield ".keywords", obj.keywords
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
        yield ".__func__", obj.__func__
    elif isinstance(obj, types.FunctionType):
        yield from _function_parts(obj)
    elif isinstance(obj, type):
        yield from ((f".{name}", value) for name, value in vars(obj).items())
        yield from ((f".__bases__[{i}]", base) for i, base in enumerate(obj.__bases__))
    else:
        yield from _container_parts(obj)
        yield from _reduced_parts(obj)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function pickled by value takes along."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".<closure>.{name}", cell.cell_contents
        except ValueError:  # assigned later, or deleted
            continue
    for name in global_names(code):
        if name in function.__globals__:
            yield f".<globals>.{name}", function.__globals__[name]
    yield ".__defaults__", function.__defaults__
    yield ".__kwdefaults__", function.__kwdefaults__
    yield from ((f".{name}", value) for name, value in vars(function).items())


def _container_parts(obj: object) -> Iterator[tuple[str, object]]:
    if isinstance(obj, Mapping):
        for key, value in obj.items():
            yield f"[{key!r}]", value
            yield f".<key {key!r}>", key
    elif isinstance(obj, tuple) and hasattr(obj, "_fields"):
        yield from ((f".{name}", value) for name, value in zip(obj._fields, obj, strict=False))
    elif isinstance(obj, list | tuple | deque):
        yield from ((f"[{i}]", value) for i, value in enumerate(obj))
    elif isinstance(obj, set | frozenset):
        yield from ((f".<element {value!r}>", value) for value in obj)


def _reduced_parts(obj: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of an object's own `__reduce_ex__`: state first, for names people know."""
    if type(obj) in {dict, list, tuple, set, frozenset}:
        return
    reduce = copyreg.dispatch_table.get(type(obj))
    try:
        reduced: Any = obj.__reduce_ex__(5) if reduce is None else reduce(obj)
    except Exception:  # noqa: BLE001 - then `obj` itself is to blame, whatever it raised
        return
    if not isinstance(reduced, tuple):
        return
    state = reduced[2] if len(reduced) > 2 else None
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((f".{name}", value) for name, value in part.items())
        elif part is not None:
            yield ".<state>", part
    yield from ((f".<argument {i}>", value) for i, value in enumerate(reduced[1]))
    yield ".<constructor>", reduced[0]
