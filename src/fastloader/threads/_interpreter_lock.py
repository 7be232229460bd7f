"""Whether this Python runs one thread at a time."""

import sys

__all__ = ["has_interpreter_lock"]


def has_interpreter_lock() -> bool:
    """Tell whether one step of the interpreter is over before another thread makes its own."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
