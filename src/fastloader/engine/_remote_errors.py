"""Exceptions that cross from a worker to the consumer with type, message and traceback."""

import pickle
import traceback
from collections.abc import Iterator
from types import MemberDescriptorType
from typing import Any, NamedTuple, TypeAlias

from fastloader._notes import add_note

__all__ = ["pack_error", "unpack_error"]

_State: TypeAlias = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
"""Attributes of an exception: ordinary ones, those in slots, and those of its built-in class."""

_WITHOUT_MEMBERS = {BaseException, BaseExceptionGroup}  # what is not in `args` is of tracebacks
_LEFT_BEHIND = {"obj"}  # of an AttributeError: what was asked, often the whole dataset


class _Named(NamedTuple):
    """An exception of a class that is in no module, such as one defined inside a function."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    state: _State
    otherwise: Any
    """Form of an exception for processes that do not have the class."""


def pack_error(error: BaseException) -> bytes:
    """Turn an exception into bytes that `unpack_error` surely understands.

    Its type is kept as far as the consumer has it; else it becomes the nearest class that it
    inherits from and that takes a message.

    Args:
        error: Being handled; its traceback is kept as text.
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    message = _message_of(error)
    parts = _parts_of(error)
    _, *held_elsewhere = parts[2]
    whole = () if any(held_elsewhere) else (error,)  # pickle asks for its ``__dict__`` alone
    for form in (*whole, parts, _picklable_parts_of(error)):
        packed, again = _tried(form, text)
        is_same = _message_of(again) == message or form is not error
        if type(again) is type(error) and is_same:
            return packed
    kind, arguments, state = _picklable_parts_of(error)
    named = _Named(
        kind.__module__,
        kind.__qualname__,
        arguments,
        state,
        _nearest_form(kind, message, error.__dict__.get("__notes__", []), text),
    )
    return pickle.dumps((named, text), pickle.HIGHEST_PROTOCOL)


def unpack_error(packed: bytes, where: str) -> BaseException:
    """Make the exception again, with the worker's traceback as a note.

    Args:
        packed: From `pack_error`.
        where: Names worker, batch and samples.
    """
    form, text = pickle.loads(packed)
    error = _from_form(form)
    add_note(error, f"Raised in {where}. Its traceback there:\n\n{text}")
    return error


def _nearest_form(kind: type[BaseException], message: str, notes: list[str], text: str) -> Any:
    """Return an exception of the nearest class that takes a message, as a form."""
    told = f"{kind.__name__}: {message}"
    state: _State = {"__notes__": notes}, {}, {}
    for base in kind.__mro__[1:]:
        if base is Exception or not issubclass(base, BaseException):
            break
        form: Any = (base, (told,), state)
        _, again = _tried(form, text)
        if message in _message_of(again):
            return form
    return RuntimeError, (told,), state


def _tried(form: Any, text: str) -> tuple[bytes, BaseException | None]:
    """Return a form packed, and the exception that comes out of it."""
    try:
        packed = pickle.dumps((form, text), pickle.HIGHEST_PROTOCOL)
        return packed, _from_form(pickle.loads(packed)[0])
    except Exception:  # noqa: BLE001 - whatever it is, the next form is tried
        return b"", None


def _message_of(error: BaseException | None) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - its own __str__ may be what is wrong
        return f"(its __str__ raised {type(failure).__name__})"


def _picklable_parts_of(
    error: BaseException,
) -> tuple[type[BaseException], tuple[Any, ...], _State]:
    kind, arguments, (attributes, slots, built_in) = _parts_of(error)
    kept = tuple(part if _can_travel(part) else repr(part) for part in arguments)
    state = _picklable_of(attributes), _picklable_of(slots), _picklable_of(built_in)
    return kind, kept, state


def _picklable_of(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in attributes.items() if _can_travel(part)}


def _can_travel(part: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(part, pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: BLE001 - then it cannot
        return False
    return True


def _parts_of(error: BaseException) -> tuple[type[BaseException], tuple[Any, ...], _State]:
    state = object.__getstate__(error)
    slots = state[1] if isinstance(state, tuple) else {}
    return type(error), error.args, (error.__dict__, slots, _built_in_of(error))


def _built_in_of(error: BaseException) -> dict[str, Any]:
    """Return what its built-in classes know besides `args`: the file name of an OSError, say."""
    members = _built_in_members(type(error))
    values = {name: member.__get__(error) for name, member in members.items()}
    return {name: value for name, value in values.items() if value is not None}


def _built_in_members(kind: type[BaseException]) -> dict[str, MemberDescriptorType]:
    return {
        name: member
        for base in kind.__mro__
        if base.__module__ == "builtins" and base not in _WITHOUT_MEMBERS
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType) and name not in _LEFT_BEHIND
    }


def _from_form(form: Any) -> BaseException:
    if isinstance(form, BaseException):
        return form
    if isinstance(form, _Named):
        return _from_named(form)
    # Classes whose __init__ or __new__ wants other arguments than `args` cannot be called with
    # those, and classes that are frozen let nobody set an attribute.
    kind, arguments, (attributes, slots, of_built_in) = form
    built_in = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error: BaseException = built_in.__new__(kind, *arguments)
    vars(BaseException)["args"].__set__(error, arguments)
    error.__dict__.update(attributes)
    for name, value in slots.items():
        object.__setattr__(error, name, value)
    members = _built_in_members(kind)
    for name, value in of_built_in.items():
        members[name].__set__(error, value)
    return error


def _from_named(form: _Named) -> BaseException:
    # A forked worker inherits the classes that its consumer has, which knows them by their parents.
    kinds = {
        kind
        for kind in _inheriting(BaseException)
        if (kind.__module__, kind.__qualname__) == (form.module, form.name)
    }
    if len(kinds) != 1:
        return _from_form(form.otherwise)
    return _from_form((kinds.pop(), form.arguments, form.state))


def _inheriting(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for inheriting in type.__subclasses__(kind):
        yield inheriting
        yield from _inheriting(inheriting)
