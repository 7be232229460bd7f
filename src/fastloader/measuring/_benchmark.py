"""Loaders measured in turn, as a table."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastloader._progress_bar import Progress, progress_bar
from fastloader.errors import SettingsError
from fastloader.measuring._measure import Measurement, check_duration, measure_if_any
from fastloader.measuring._table import format_table
from fastloader.settings._given import as_count

__all__ = ["BenchmarkResult", "benchmark"]

_COLUMNS = {
    "samples/s": ("samples_per_second", 1.0, ",.0f"),
    "MB/s": ("batch_bytes_per_second", 1e-6, ",.1f"),
    "wait %": ("wait_share", 100.0, ".0f"),
    "first batch ms": ("first_batch_seconds", 1e3, ",.1f"),
    "next p50 ms": ("next_p50_seconds", 1e3, ",.2f"),
    "p95 ms": ("next_p95_seconds", 1e3, ",.2f"),
    "p99 ms": ("next_p99_seconds", 1e3, ",.2f"),
    "epoch gap ms": ("epoch_gap_seconds", 1e3, ",.1f"),
    "CPU ms/batch": ("batch_cpu_seconds", 1e3, ",.2f"),
    "memory MB": ("memory_bytes", 1e-6, ",.0f"),
}


@dataclass(frozen=True)
class BenchmarkResult:
    """Measurements of loaders by name, of each round one."""

    measurements: Mapping[str, tuple[Measurement, ...]]

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return the median over rounds of each number, by name of the loader and of the number.

        Numbers that were not measured in each round are not in.
        """
        return {name: _medians(rounds) for name, rounds in self.measurements.items()}

    def __str__(self) -> str:
        """Return a table, one line for each loader."""
        return format_table(self.cells())

    def cells(self) -> list[list[str]]:
        """Return the cells of the table row by row, the header first."""
        rows = [["loader", *_COLUMNS]]
        for name, values in self.as_dict().items():
            rows.append([
                name,
                *(
                    format(values[key] * scale, form) if key in values else "-"
                    for key, scale, form in _COLUMNS.values()
                ),
            ])
        return rows


def benchmark(
    loaders: Iterable[Any] | Mapping[str, Iterable[Any]],
    *,
    step: Callable[[Any], Any] | None = None,
    seconds: float = 5.0,
    num_rounds: int = 3,
    progress: Progress = "auto",
) -> BenchmarkResult:
    """Measure loaders in turn: rates, times in ``next``, first batch, gap between epochs.

    Each round measures every loader for a part of the time, so that what slows the machine for
    a while slows all of them; every other round goes backwards. A loader begins its turn with
    workers that live on but nothing made ahead, and ends it when they have nothing more to do
    (see `measure_loader`), so that none works in the time of another. One over a stream that is at its end
    for good has no further turn.

    Args:
        loaders: One, or several by name: of this package (a `MixedLoader` too) or of torch.
        step: Called with each batch: what the training loop does with it. With it, the share of
            waiting tells whether a loader is fast enough; without it, all time is waiting.
        seconds: For each loader, over all rounds.
        num_rounds: In which each loader is measured once.
        progress: Whether to show a progress bar; "auto" shows it in a terminal.

    Raises:
        SettingsError: If there is no time, round or loader, if one is something else, or gives no batch.

    Examples:
        >>> from fastloader import FastLoader
        >>> result = benchmark(FastLoader(range(64), 8), seconds=0.1, num_rounds=1)
        >>> result.as_dict()["loader"]["num_batches"] > 8
        True
    """
    named = loaders if isinstance(loaders, Mapping) else {"loader": loaders}
    if as_count("num_rounds", num_rounds) < 1 or not named:
        raise SettingsError(
            f"There must be a round and a loader to measure, but got {num_rounds} rounds and "
            f"{len(named)} loaders."
        )
    check_duration(seconds)
    measured: dict[str, list[Measurement]] = {name: [] for name in named}
    total = num_rounds * len(named)
    with progress_bar(total, progress, what="Measuring", unit=" turns") as bar:
        for number in range(num_rounds):
            for name in named if number % 2 == 0 else reversed(list(named)):
                found = measure_if_any(named[name], step=step, seconds=seconds / num_rounds)
                if found is not None:
                    measured[name].append(found)
                elif not measured[name]:
                    raise SettingsError(
                        f"{name!r} gave no batch, so there is nothing to measure."
                    )
                bar.advance(1)
    return BenchmarkResult({name: tuple(rounds) for name, rounds in measured.items()})


def _medians(rounds: tuple[Measurement, ...]) -> dict[str, float]:
    values = [
        {**one.as_dict(), "batch_cpu_seconds": one.cpu_seconds / one.stats.num_batches}
        for one in rounds
    ]
    names = [name for name in values[0] if all(name in one for one in values)]
    return {name: statistics.median(one[name] for one in values) for name in names}
