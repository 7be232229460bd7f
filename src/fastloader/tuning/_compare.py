"""Given settings of one dataset, compared as a table and a picture."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from fastloader._loader import FastLoader
from fastloader._progress_bar import Progress
from fastloader.errors import SettingsError
from fastloader.measuring import BenchmarkResult, benchmark, plot_rates
from fastloader.tuning._trial import Step

__all__ = ["compare_settings", "plot_comparison"]


def compare_settings(
    dataset: Any,
    settings: Mapping[str, Mapping[str, Any] | DataLoader[Any]],
    *,
    step: Step | None = None,
    seconds: float = 5.0,
    num_rounds: int = 3,
    progress: Progress = "auto",
    **options: Any,
) -> BenchmarkResult:
    """Measure loaders over one dataset that differ in their settings, in turns.

    Args:
        dataset: Of all loaders.
        settings: Options of a `FastLoader` by the name of the setting; or a loader, to compare
            with.
        step: What the consumer does with a batch.
        seconds: For each setting, over all rounds.
        num_rounds: In which each is measured once; every other round goes backwards.
        progress: Whether to show a progress bar; "auto" shows it in a terminal.
        **options: Of all of them, such as ``batch_size=32``.

    Returns:
        What `fastloader.benchmark` returns: print it, or give it to `plot_comparison`.

    Raises:
        SettingsError: If there is nothing to compare, or options cannot work.

    Examples:
        >>> settings = {"no workers": {"num_workers": 0}, "any order": {"in_order": False}}
        >>> result = compare_settings(
        ...     range(64), settings, batch_size=8, seconds=0.1, num_rounds=1
        ... )
        >>> list(result.as_dict())
        ['no workers', 'any order']
    """
    if not settings:
        raise SettingsError("There must be a setting to measure, but there is none.")
    with warnings.catch_warnings():
        # Whether more workers than CPUs are too many is what is asked.
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", r"num_workers=\d+ is more than the")
        loaders = {
            name: FastLoader(dataset, **{**options, **given})
            if isinstance(given, Mapping)
            else given
            for name, given in settings.items()
        }
        return benchmark(
            loaders, step=step, seconds=seconds, num_rounds=num_rounds, progress=progress
        )


def plot_comparison(
    result: BenchmarkResult, path: str | os.PathLike[str] | None = None, *, ax: Any = None
) -> Any:
    """Draw the rate of each loader: a bar for the median, and a dot for each round.

    Args:
        result: From `compare_settings` or `fastloader.benchmark`.
        path: Picture to write, its kind by the ending; None writes none.
        ax: Axes of matplotlib to draw into; None makes a figure of its own.

    Returns:
        The axes.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        DestinationError: If the picture cannot be written.
    """
    rates = {
        name: [one.as_dict().get("samples_per_second", 0.0) for one in rounds]
        for name, rounds in result.measurements.items()
    }
    return plot_rates(rates, path, unit="samples per second", ax=ax)
