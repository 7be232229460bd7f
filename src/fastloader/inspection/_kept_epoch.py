"""Tells in which attribute an object keeps the number of the epoch that it is told."""

import dis
from functools import lru_cache
from types import CodeType, FunctionType

__all__ = ["attribute_of_epoch"]

_CHANGES_NOTHING = frozenset({"CACHE", "NOP", "PRECALL", "PUSH_NULL"})
"""Steps between a value and its use."""


def attribute_of_epoch(kind: type) -> str | None:
    """Return where ``set_epoch`` of a class stores its argument, as it is or as an `int`.

    It is read off the code: to call the method of a copy may have effects outside it. A
    ``seed`` is no number of an epoch before it has been set.

    Returns:
        Name of an attribute of the object; None if there is none to be seen.
    """
    function = getattr(kind, "set_epoch", None)
    return _stored(function.__code__) if isinstance(function, FunctionType) else None


@lru_cache(maxsize=256)
def _stored(code: CodeType) -> str | None:
    if code.co_argcount < 2:
        return None
    owner, epoch = code.co_varnames[:2]
    loaded: list[str] = []  # by the last steps, with nothing done in between
    called = None
    for step in dis.get_instructions(code):
        if step.is_jump_target:  # what was loaded may be something else
            loaded, called = [], None
        if step.opname == "STORE_ATTR" and loaded[-2:] == [epoch, owner]:
            return None if "seed" in step.argval else str(step.argval)
        if step.opname.startswith("LOAD_FAST"):
            loaded += step.argval if isinstance(step.argval, tuple) else (step.argval,)
        elif step.opname == "LOAD_GLOBAL":
            loaded, called = [], step.argval
        elif step.opname not in _CHANGES_NOTHING and (step.opname != "CALL" or called != "int"):
            loaded, called = [], None
    return None
