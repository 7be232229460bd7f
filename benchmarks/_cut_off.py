"""Lets a signal that would end a process without a word be an error, so that results are saved."""

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["told_of_signals"]

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def told_of_signals() -> Iterator[None]:
    """Raise `SystemExit`, which names the signal, where one would end the process."""

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(f"cut off by {signal.Signals(number).name}.")

    previous = {number: signal.signal(number, stop) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
