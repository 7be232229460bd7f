"""What one run of a configuration has done, and what it has cost."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from _cost import tree_cost

__all__ = [
    "BenchmarkError",
    "CannotRun",
    "Keeping",
    "Measurement",
    "Run",
    "Summary",
    "Work",
    "cannot_run",
    "measure",
]


class BenchmarkError(RuntimeError):
    """A configuration failed, or reported a rate that cannot be."""


class CannotRun(Exception):  # noqa: N818 - no error: the table shows it with its reason
    """A configuration has no way to run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one run has done, as the script counted it."""

    samples: int = 0
    batches: int = 0
    nbytes: int = 0
    """Bytes of the batches delivered; checked against what the machine can copy."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Anything else that was measured, by name with its unit, like ``first_batch_seconds``."""


Run: TypeAlias = Callable[[], Work]
"""The part of a configuration that is timed; called many times."""


def cannot_run(reason: str) -> Run:
    """Prepare a configuration that is no more than a row that says why it is missing.

    Raises:
        CannotRun: Always.
    """
    raise CannotRun(reason)


class Keeping:
    """A run whose results stay until the next one, and are let go of while no clock runs."""

    kept: ClassVar[list[Any]] = []
    """Of the last run of this process: another one may find and use what is still there."""

    def __init__(self, run: Callable[[list[Any]], Work]) -> None:
        """Take the run.

        Args:
            run: Puts into a list, empty at first, what is to stay.
        """
        self._run = run

    def __call__(self) -> Work:
        return self._run(self.kept)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One timed run."""

    wall_seconds: float
    cpu_seconds: float
    """CPU time of the whole process tree."""
    page_faults: int
    work: Work

    def quantities(self) -> dict[str, float]:
        """Return every measured number by name."""
        found = {
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "page_faults": float(self.page_faults),
            **self.work.values,
        }
        counts = {
            "samples": self.work.samples,
            "batches": self.work.batches,
            "bytes": self.work.nbytes,
        }
        for name, count in counts.items():
            if count:
                found[f"{name}_per_second"] = count / self.wall_seconds
        if self.work.batches:
            found["page_faults_per_batch"] = self.page_faults / self.work.batches
            found["cpu_seconds_per_batch"] = self.cpu_seconds / self.work.batches
        return found


def measure(run: Run) -> Measurement:
    """Call `run` once, and take what it costs."""
    Keeping.kept.clear()
    before = tree_cost()
    start = time.perf_counter()
    work = run()
    wall_seconds = time.perf_counter() - start
    cost = tree_cost() - before
    return Measurement(wall_seconds, cost.cpu_seconds, cost.page_faults, work)


@dataclass(frozen=True, slots=True)
class Summary:
    """Median and spread of one quantity over the runs."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise `values`: median, first and third quartile."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3)
