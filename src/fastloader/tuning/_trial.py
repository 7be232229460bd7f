"""A loader with one candidate's settings, measured a stretch at a time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from fastloader._loader import FastLoader
from fastloader.errors import EmptyEpochError, TuningError
from fastloader.tuning._candidate import Candidate
from fastloader.tuning._stretches import MOST_BEFORE, Stretches
from fastloader.tuning._subject import Subject

__all__ = ["Step", "Stretch", "Trial"]

Step = Callable[[Any], Any]


class Stretch(NamedTuple):
    """What was measured in one go."""

    num_batches: int
    seconds: float

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.num_batches / self.seconds


class Trial:
    """A loader that is measured.

    Its workers live on from stretch to stretch and stand idle in between, so that trials can
    take turns without disturbing each other.

    **Processes:** its loader's workers are started by the first stretch, also after `close`, which ends
    them.

    Args:
        subject: What is loaded.
        candidate: How.
        step: The consumer's work for a batch.
    """

    def __init__(self, subject: Subject, candidate: Candidate, step: Step | None) -> None:
        self.candidate = candidate
        self.position = MOST_BEFORE
        """Place in the order of what is to be timed next."""
        self.start_seconds = 0.0
        """What its first batch took, for which workers start."""
        self._step = step
        options = subject.loader_options(candidate)
        self._stretches: Stretches | None = None
        if (tape := subject.tape) is not None:
            order = "sampler" if options.get("batch_sampler") is None else "batch_sampler"
            options[order] = self._stretches = Stretches(tape)
        with _reading():
            self._loader: FastLoader[Any] = FastLoader(**options)

    def measure(self, num_batches: int, max_seconds: float) -> Stretch:
        """Read the batches from `position` on and time them, first to last step.

        Those before, one for each worker, are read before the clock starts, and as many
        are under way when it stops: what is measured is the rate of a long epoch.

        Args:
            num_batches: How many to time; the next ones are timed after these.
            max_seconds: Stop earlier after this time.

        Raises:
            TuningError: If the dataset raises, or a worker ends.
        """
        num_workers = self.candidate.num_workers
        num_before = max(1, num_workers)
        stretches = self._stretches
        if stretches is not None:
            stretches.start = max(0, self.position - num_before)
            stretches.length = num_before + num_batches + num_workers
        self.position += num_batches
        began = time.perf_counter()
        batches = _Batches(self._loader, is_endless=stretches is None)
        try:
            for number in range(num_before):
                batch = batches.take()
                if number == 0:
                    self.start_seconds = max(self.start_seconds, time.perf_counter() - began)
                self._consume(batch)
            _synchronize()
            start = time.perf_counter()
            done = 0
            while done < num_batches and time.perf_counter() - start < max_seconds:
                self._consume(batches.take())
                done += 1
            _synchronize()
            return Stretch(done, time.perf_counter() - start)
        finally:
            batches.close()

    def take_one(self) -> Any:
        """Return one batch."""
        if self._stretches is not None:
            self._stretches.length = 1
        batches = _Batches(self._loader, is_endless=False)
        try:
            return batches.take()
        finally:
            batches.close()

    def close(self) -> None:
        """End the workers."""
        loader: Any = self._loader
        loader._opener.keeper.close()  # noqa: SLF001
        if loader._iterator is not None:  # noqa: SLF001 - torch's own, where that is tried
            loader._iterator._shutdown_workers()  # noqa: SLF001
            loader._iterator = None  # noqa: SLF001

    def _consume(self, batch: Any) -> None:
        if self._step is not None:
            self._step(batch)


class _Batches:
    """The batches of one pass, or of passes without end."""

    def __init__(self, loader: FastLoader[Any], *, is_endless: bool) -> None:
        self._loader = loader
        self._is_endless = is_endless
        with _reading():
            self._iterator: Any = iter(loader)

    def take(self) -> Any:
        with _reading():
            batch = next(self._iterator, _NOTHING)
            if batch is _NOTHING and self._is_endless:
                self._iterator = iter(self._loader)
                batch = next(self._iterator, _NOTHING)
            if batch is _NOTHING:
                raise EmptyEpochError(
                    "An epoch of this loader has no batches, so there is nothing to measure."
                )
            return batch

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        self._iterator = None


_NOTHING = object()


@contextmanager
def _reading() -> Iterator[None]:
    """Tell what goes wrong with a loader from what the consumer's step raises.

    Raises:
        EmptyEpochError: If there are no batches.
        TuningError: If a batch cannot be had.
    """
    try:
        yield
    except EmptyEpochError:
        raise
    except Exception as error:
        raise TuningError(_blame(error)) from error


def _blame(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return (
        f"No batch could be read ({text}), so nothing can be measured: mend what is said there, "
        "or leave such samples out with on_error='skip'. fastloader.testing.check_dataset finds "
        "more of this kind."
    )


def _synchronize() -> None:
    """Wait until the accelerator has done what the steps asked of it."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
