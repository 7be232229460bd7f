"""Exceptions that cross from a worker to the consumer with type, message and traceback."""

import pickle
import traceback
from typing import Any

__all__ = ["pack_error", "unpack_error"]


def pack_error(error: BaseException) -> bytes:
    """Turn an exception into bytes that `unpack_error` surely understands.

    Its type is kept as far as that can be pickled; else it becomes the nearest class that it
    inherits from and that takes a message.

    Args:
        error: Being handled; its traceback is kept as text.
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    message = _message_of(error)
    for form in (error, _parts_of(error), _picklable_parts_of(error)):
        packed, again = _tried(form, text)
        is_same = _message_of(again) == message or form is not error
        if type(again) is type(error) and is_same:
            return packed
    name = type(error).__name__
    for base in type(error).__mro__[1:]:
        if base is Exception or not issubclass(base, BaseException):
            break
        packed, again = _tried((base, (f"{name}: {message}",), {}), text)
        if message in _message_of(again):
            return packed
    return pickle.dumps((RuntimeError(f"{name}: {message}"), text), pickle.HIGHEST_PROTOCOL)


def unpack_error(packed: bytes, where: str) -> BaseException:
    """Make the exception again, with the worker's traceback as a note.

    Args:
        packed: From `pack_error`.
        where: Names worker, batch and samples.
    """
    form, text = pickle.loads(packed)
    error = _from_form(form)
    error.add_note(f"Raised in {where}. Its traceback there:\n\n{text}")
    return error


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
) -> tuple[type[BaseException], tuple[Any, ...], Any]:
    kind, arguments, state = _parts_of(error)
    kept = tuple(part if _can_travel(part) else repr(part) for part in arguments)
    return kind, kept, {name: part for name, part in state.items() if _can_travel(part)}


def _can_travel(part: Any) -> bool:
    try:
        pickle.loads(pickle.dumps(part, pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: BLE001 - then it cannot
        return False
    return True


def _parts_of(error: BaseException) -> tuple[type[BaseException], tuple[Any, ...], Any]:
    return type(error), error.args, error.__dict__


def _from_form(form: Any) -> BaseException:
    if isinstance(form, BaseException):
        return form
    # Classes whose __init__ wants other arguments than `args` cannot be called with those.
    kind, arguments, state = form
    error: BaseException = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error
