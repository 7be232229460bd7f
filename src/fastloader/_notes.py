"""What is done to exceptions of users' classes, which may let nobody set an attribute."""

from collections.abc import Callable, Iterator
from functools import wraps
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar

__all__ = ["add_note", "user_block"]

_Given = ParamSpec("_Given")
_Yielded = TypeVar("_Yielded")


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, as `BaseException.add_note` does where the class is ordinary.

    That sets an attribute, which raises for a frozen dataclass, and would hide what went wrong.

    Args:
        error: Of any class.
        note: The text.
    """
    error.__dict__.setdefault("__notes__", []).append(note)


def user_block(
    steps: Callable[_Given, Iterator[_Yielded]],
) -> Callable[_Given, "_Block[_Yielded]"]:
    """Make a context manager of a generator function, for blocks in which users' code runs.

    `contextlib.contextmanager` sets an attribute of what the block raises, which raises for a frozen
    dataclass.

    Args:
        steps: Yields once; what it lets through of what the block raises goes on as it is.
    """

    @wraps(steps)
    def begin(*args: _Given.args, **kwargs: _Given.kwargs) -> _Block[_Yielded]:
        return _Block(steps(*args, **kwargs))

    return begin


class _Block(Generic[_Yielded]):
    __slots__ = ("_steps",)

    def __init__(self, steps: Iterator[_Yielded]) -> None:
        self._steps = steps

    def __enter__(self) -> _Yielded:
        return next(self._steps)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            next(self._steps, None)
            return
        try:
            self._steps.throw(error)  # type: ignore[attr-defined]
        except BaseException as raised:
            # What ends a generator becomes another error on its way out of one.
            if raised is not error and not (
                isinstance(error, StopIteration) and raised.__cause__ is error
            ):
                raise
            BaseException.with_traceback(error, traceback)
