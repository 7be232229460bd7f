"""Prints what the demo found as a table, and draws it with some of the images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

from training import Result

mpl.use("Agg")  # no window
import matplotlib.pyplot as plt

__all__ = ["draw", "print_table"]

_COLOURS = ("#1b7f79", "#b9a98a", "#8a7d66")  # ours first


def print_table(results: Sequence[Result]) -> None:
    """Print one row per loader, in columns."""
    heading = ["", "samples/s", "first batch", "waiting", "peak memory", "test accuracy"]
    table = [heading, *(_cells(result) for result in results)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *cells in table:
        right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  " + "   ".join([name.ljust(widths[0]), *right]))


def _cells(result: Result) -> list[str]:
    return [
        result.name,
        f"{result.samples_per_second:,.0f}",
        f"{result.first_batch_seconds:.2f} s",
        f"{result.wait_share:.0%}",
        f"{result.peak_memory_bytes / 2**20:,.0f} MiB",
        f"{result.test_accuracy:.0%}",
    ]


@dataclass(frozen=True)
class _Panel:
    title: str
    better: str
    values: list[float]
    form: str


def _panels(results: Sequence[Result]) -> list[_Panel]:
    more, less = "higher is better", "lower is better"
    rates = [result.samples_per_second for result in results]
    first = [result.first_batch_seconds for result in results]
    waits = [100 * result.wait_share for result in results]
    peaks = [result.peak_memory_bytes / 2**20 for result in results]
    return [
        _Panel("samples/s", more, rates, "{:,.0f}"),
        _Panel("time to the first batch", less, first, "{:.2f} s"),
        _Panel("time spent waiting", less, waits, "{:.0f} %"),
        _Panel("peak memory", less, peaks, "{:,.0f} MiB"),
    ]


def draw(
    path: Path,
    results: Sequence[Result],
    *,
    title: str,
    images: npt.NDArray[np.float32],
    captions: Sequence[str],
) -> None:
    """Write a PNG.

    Args:
        path: Of the PNG.
        results: What was measured, FastLoader first.
        title: Heading.
        images: Example images in colour, 0 to 1, shape ``(N, H, W, 3)``.
        captions: Below each image.
    """
    figure = plt.figure(figsize=(11, 6.2), layout="constrained")
    figure.suptitle(title, fontsize=13)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.0, 1.6))[:, 0]
    for axes, image, caption in zip(
        upper.subplots(1, len(images)), images, captions, strict=True
    ):
        axes.imshow(image)
        axes.set_title(caption, fontsize=9)
        axes.axis("off")
    names = [result.name.replace(", ", ",\n") for result in results]
    places = range(len(results))
    panels = _panels(results)
    for axes, panel in zip(lower.subplots(1, len(panels)), panels, strict=True):
        bars = axes.bar(places, panel.values, color=_COLOURS[: len(names)], width=0.7)
        labels = [panel.form.format(value) for value in panel.values]
        axes.bar_label(bars, labels=labels, fontsize=9)
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(panel.better, fontsize=9)
        axes.set_xticks(places, names, fontsize=7.5)
        axes.set_yticks([])
        axes.margins(y=0.15)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
