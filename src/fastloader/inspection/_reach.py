"""What an object reaches besides its ``__dict__``: slots, class attributes, global variables."""

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from types import (
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

__all__ = ["global_names", "is_own_code", "slots_of", "statics_of"]

_BARE_DESCRIPTORS = (
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
"""Methods and attributes written in C, which hold nothing. A tensor's class has six hundred."""

_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
"""Operations that look a global variable up; those of attributes share a list of names with them."""

_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def statics_of(owner: object) -> Iterator[tuple[str, Any]]:
    """Yield what a class or function of the user's own code reaches, by full names.

    Of a class its attributes, inherited ones as well, and the globals that its methods name; of
    a function the globals that it names. Functions and classes are among them where they are
    the user's own, too. Libraries' classes give their attributes alone.

    Args:
        owner: A class or function; for anything else there is nothing.

    Yields:
        Name like ``train.Scans.crop`` or ``train.CONFIG``, and value.
    """
    if isinstance(owner, FunctionType):
        yield from _globals_of(owner)
    elif isinstance(owner, type):
        for cls in owner.__mro__:
            yield from _attributes_of(cls)


def slots_of(obj: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object that lie in slots, by their names."""
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            member = cls.__dict__.get(name)
            if not isinstance(member, MemberDescriptorType):
                continue  # ``__dict__`` itself, or a mangled name
            try:
                yield name, member.__get__(obj)
            except AttributeError:  # not assigned yet
                continue


@lru_cache(maxsize=1024)
def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names that code, and the functions in it, look up among globals."""
    steps = (step for one in _codes_in(code) for step in dis.get_instructions(one))
    return tuple(dict.fromkeys(step.argval for step in steps if step.opname in _OF_GLOBALS))


def is_own_code(owner: FunctionType | type) -> bool:
    """Tell whether a class or function is the user's own: no library's, nor Python's."""
    return _is_own_module(getattr(owner, "__module__", None))


def _attributes_of(cls: type) -> Iterator[tuple[str, Any]]:
    is_own = is_own_code(cls)
    for name, value in tuple(vars(cls).items()):
        if isinstance(value, _BARE_DESCRIPTORS) or (
            name.startswith("__")
            and name.endswith("__")
            and not isinstance(value, FunctionType)
        ):
            continue
        if not isinstance(value, FunctionType):
            yield f"{cls.__module__}.{cls.__qualname__}.{name}", value
        elif is_own:
            yield f"{cls.__module__}.{cls.__qualname__}.{name}", value
            yield from _globals_of(value)


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    if not is_own_code(function):
        return
    code = function.__code__
    # Of attributes as well: which of them are globals is looked at where it matters.
    for name in (name for one in _codes_in(code) for name in one.co_names):
        value = function.__globals__.get(name)
        if value is None or isinstance(value, ModuleType):
            continue
        if isinstance(value, FunctionType | type):
            is_reached = is_own_code(value)
        else:
            is_reached = name in global_names(code)  # which takes longer, and is rarely asked
        if is_reached:
            yield f"{function.__module__}.{name}", value


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


@cache
def _is_own_module(module: str | None) -> bool:
    if module is None or module.partition(".")[0] in {"builtins", "fastloader"}:
        return False
    path = getattr(sys.modules.get(module), "__file__", None)
    return path is None or not path.startswith(_LIBRARIES)
