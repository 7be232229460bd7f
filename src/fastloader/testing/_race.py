"""Read the same things by several threads at once, and see whether they get in each other's way."""

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastloader.testing._compare import difference
from fastloader.testing._report import FailedError

__all__ = ["NUM_THREADS", "race"]

NUM_THREADS = 4

_FEWEST = 2
_MOST_ROUNDS = 25
_SECONDS = 0.5
"""After which no further round begins."""
_SWITCH_SECONDS = 1e-5
"""The interpreter goes from thread to thread this often, 500 times more than it does else: a race
that would show up once in hours has many chances."""


def race(
    read: Callable[[int], Any], indices: Sequence[int], reading_seconds: float
) -> tuple[int, int]:
    """Read in one thread, then time and again in several at once, and compare.

    Args:
        read: Reads something by its index.
        indices: To read, in each thread beginning at another one.
        reading_seconds: For the first thread; what it has not read by then is left out, but for two.

    Returns:
        How many were read, and how many rounds there were.

    Raises:
        FailedError: If a thread got something else, or an error.
    """
    expected: dict[int, Any] = {}
    until = time.monotonic() + reading_seconds
    for index in indices:
        if len(expected) >= _FEWEST and time.monotonic() >= until:
            break
        expected[index] = _copied(read(index))
    until = time.monotonic() + min(_SECONDS, reading_seconds)
    num_rounds = 0
    with _switching_often():
        while num_rounds < _MOST_ROUNDS and (num_rounds == 0 or time.monotonic() < until):
            num_rounds += 1
            told = _round(read, list(expected), expected)
            if told is not None:
                raise FailedError(
                    f"{told}: it is not safe to read from several threads, or draws from "
                    "generators that all threads share"
                )
    return len(expected), num_rounds


def _copied(sample: Any) -> Any:
    """Return a copy, as a sample may lie in memory that the next one is read to."""
    try:
        return copy.deepcopy(sample)
    except TypeError:  # it holds what cannot be copied
        return sample


def _round(
    read: Callable[[int], Any], indices: Sequence[int], expected: dict[int, Any]
) -> str | None:
    """Return what went wrong first, if anything."""
    start = threading.Barrier(NUM_THREADS)
    faults: list[str] = []

    def work(first: int) -> None:
        start.wait()
        for index in [*indices[first:], *indices[:first]]:
            try:
                told = difference(expected[index], read(index))
            except Exception as error:  # noqa: BLE001 - the dataset may raise anything
                told = f"{type(error).__name__}: {error}"
            if told is not None:
                faults.append(f"in threads, sample {index}: {told}")
                return

    threads = [
        threading.Thread(target=work, args=(number * len(indices) // NUM_THREADS,))
        for number in range(NUM_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults[0] if faults else None


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
