"""What was measured as a picture."""

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastloader._extras import import_extra
from fastloader.errors import DestinationError
from fastloader.measuring._diagnose import Diagnosis

__all__ = ["check_plot", "plot_diagnosis", "plot_rates"]


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse a picture that cannot be written before anything is measured for it.

    Args:
        path: Of the picture, its kind by the ending.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        DestinationError: If there is no such folder, or no such kind of picture.
    """
    bases: Any = import_extra("matplotlib.backend_bases", "plot", "Drawing")
    kinds = bases.FigureCanvasBase.get_supported_filetypes()
    kind = Path(path).suffix.lstrip(".").lower()
    if kind and kind not in kinds:  # without an ending it becomes a PNG
        raise DestinationError(
            f"{path} cannot be drawn: {kind} is no kind of picture that matplotlib writes "
            f"({', '.join(sorted(kinds))})."
        )
    if not Path(path).absolute().parent.is_dir():
        raise DestinationError(f"{path} cannot be drawn: there is no such folder.")


def plot_rates(
    rates: Mapping[str, Sequence[float]],
    path: str | os.PathLike[str] | None = None,
    *,
    unit: str = "batches per second",
    ax: Any = None,
) -> Any:
    """Draw a bar for the median of each setting, and a dot for each time it was measured.

    Args:
        rates: What was measured, by the name of the setting.
        path: Picture to write, its kind by the ending; None writes none.
        unit: Of the rates.
        ax: Axes of matplotlib to draw into; None makes a figure of its own, apart from those of
            `matplotlib.pyplot`.

    Returns:
        The axes.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        DestinationError: If the picture cannot be written.
    """
    ax = _new_axes(len(rates)) if ax is None else ax
    names = list(rates)
    medians = [statistics.median(rates[name]) for name in names]
    colors = ["tab:blue" if median < max(medians) else "tab:green" for median in medians]
    ax.barh(names, medians, color=colors, alpha=0.6)
    for place, name in enumerate(names):
        ax.plot(rates[name], [place] * len(rates[name]), ".", color="black", markersize=4)
    _finish(ax, unit, path)
    return ax


def plot_diagnosis(
    diagnosis: Diagnosis, path: str | os.PathLike[str] | None = None, *, ax: Any = None
) -> Any:
    """Draw where the time of the loop goes, and what it takes one process to make a batch.

    The dots of the wait are its median, 95th and 99th percentile; the bar is the mean.

    Args:
        diagnosis: From `fastloader.diagnose`.
        path: Picture to write, its kind by the ending; None writes none.
        ax: Axes of matplotlib to draw into; None makes a figure of its own.

    Returns:
        The axes.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        DestinationError: If the picture cannot be written.
    """
    evidence, stats = diagnosis.evidence, diagnosis.measurement.stats
    parts = {
        "the loop waits": (evidence.wait_seconds, "tab:red"),
        "the loop works": (evidence.step_seconds, "tab:green"),
        "making: samples": (evidence.samples_seconds, "tab:blue"),
        "making: collate": (evidence.collate_seconds, "tab:blue"),
        "making: batch_transform": (evidence.transform_seconds, "tab:blue"),
        "making: indices": (evidence.order_seconds, "tab:blue"),
        "copy to the device": (evidence.copy_seconds, "tab:blue"),
    }
    shown = [
        (name, 1e3 * seconds, colour) for name, (seconds, colour) in parts.items() if seconds
    ]
    ax = _new_axes(len(shown)) if ax is None else ax
    for name, milliseconds, colour in shown:
        ax.barh(name, milliseconds, color=colour, alpha=0.6)
    waits = (stats.next_p50_seconds, stats.next_p95_seconds, stats.next_p99_seconds)
    for seconds in waits:
        if seconds is not None and evidence.wait_seconds:
            ax.plot([1e3 * seconds], ["the loop waits"], ".", color="black", markersize=4)
    ax.set_title(", ".join(diagnosis.causes) or "nothing to complain about", fontsize="medium")
    _finish(ax, "milliseconds for a batch", path)
    return ax


def _new_axes(num_bars: int) -> Any:
    figures: Any = import_extra("matplotlib.figure", "plot", "Drawing")
    size = (8, 0.9 + 0.32 * num_bars)
    return figures.Figure(figsize=size, layout="constrained").add_subplot()


def _finish(ax: Any, unit: str, path: str | os.PathLike[str] | None) -> None:
    """Put the first bar on top, say what the axis is, and write the picture.

    Raises:
        DestinationError: If it cannot be written.
    """
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel(unit)
    ax.spines[["top", "right"]].set_visible(False)
    if path is not None:
        try:
            ax.figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:  # no such folder; no such kind of picture
            raise DestinationError(f"{path} cannot be drawn ({error}).") from error
