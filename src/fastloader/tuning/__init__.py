"""Which settings are the fastest: measured, not guessed."""

from fastloader.tuning._report import TuningReport
from fastloader.tuning._tune import measure_settings, tune

__all__ = ["TuningReport", "measure_settings", "tune"]
