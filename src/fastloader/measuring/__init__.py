"""Measures loaders of any kind, compares them, and says what makes them slow."""

from fastloader.measuring._batch_size import find_batch_size
from fastloader.measuring._benchmark import BenchmarkResult, benchmark
from fastloader.measuring._diagnose import Diagnosis, diagnose
from fastloader.measuring._evidence import Evidence
from fastloader.measuring._finding import Cause, Finding
from fastloader.measuring._measure import Measurement, measure_loader
from fastloader.measuring._plot import check_plot, plot_diagnosis, plot_rates
from fastloader.measuring._subject import is_loader

__all__ = [
    "BenchmarkResult",
    "Cause",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Measurement",
    "benchmark",
    "check_plot",
    "diagnose",
    "find_batch_size",
    "is_loader",
    "measure_loader",
    "plot_diagnosis",
    "plot_rates",
]
