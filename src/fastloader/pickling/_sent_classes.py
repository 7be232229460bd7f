"""Classes that travel to workers by value, known again in what comes back.

A worker cannot name such a class to its consumer: it stands in no module, or in a `__main__` that is another
one in the worker. So each gets a number on its way.
"""

import itertools
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

__all__ = ["numbered", "reduce_sent_class"]

_numbers: WeakKeyDictionary[type, int] = WeakKeyDictionary()
_classes: WeakValueDictionary[int, type] = WeakValueDictionary()
_next_numbers = itertools.count()


def numbered(kind: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return how a class travels to a worker, together with its number.

    Args:
        kind: The class.
        reduced: How it travels by value.
    """
    number = _numbers.get(kind)
    if number is None:
        _numbers[kind] = number = next(_next_numbers)
        _classes[number] = kind
    make, arguments, *state = reduced
    return _make_numbered, (number, kind.__qualname__, make, *arguments), *state


def reduce_sent_class(kind: type) -> Any:
    """Return how a class travels from a worker to its consumer, or NotImplemented for pickle's own way."""
    number = _numbers.get(kind)
    return NotImplemented if number is None else (_class_with, (number,))


def _make_numbered(number: int, qualname: str, make: Any, *arguments: Any) -> type:
    kind: type = make(*arguments)
    type.__setattr__(kind, "__qualname__", qualname)  # which cloudpickle forgets
    _numbers[kind] = number
    return kind


def _class_with(number: int) -> type:
    return _classes[number]
