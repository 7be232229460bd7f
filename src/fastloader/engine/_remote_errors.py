"""Exceptions that cross from a worker to the consumer with type, message and traceback."""

import pickle
import traceback
from typing import Any

__all__ = ["pack_error", "unpack_error"]


def pack_error(error: BaseException) -> bytes:
    """Turn an exception into bytes that `unpack_error` surely understands.

    Args:
        error: Being handled; its traceback is kept as text.
    """
    text = "".join(traceback.format_exception(error)).rstrip()
    for form in (error, _parts_of(error)):
        try:
            packed = pickle.dumps((form, text), pickle.HIGHEST_PROTOCOL)
            again = _from_form(pickle.loads(packed)[0])
        except Exception:  # noqa: BLE001, S112 - whatever it is, the next form is tried
            continue
        if type(again) is type(error) and str(again) == str(error):
            return packed
    named = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps((named, text), pickle.HIGHEST_PROTOCOL)


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
