"""Which settings are the fastest: measured, not guessed."""

from fastloader.measuring import plot_rates
from fastloader.tuning._compare import compare_settings, plot_comparison
from fastloader.tuning._report import TuningReport
from fastloader.tuning._row import Row
from fastloader.tuning._tune import measure_settings, tune

__all__ = [
    "Row",
    "TuningReport",
    "compare_settings",
    "measure_settings",
    "plot_comparison",
    "plot_rates",
    "tune",
]
