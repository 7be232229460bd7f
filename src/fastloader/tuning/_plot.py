"""Rates of several settings as a picture."""

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastloader._extras import import_extra
from fastloader.errors import DestinationError

__all__ = ["check_plot", "plot_rates"]


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
    if ax is None:
        figure_module: Any = import_extra("matplotlib.figure", "plot", "Drawing")
        height = 0.9 + 0.32 * len(rates)
        ax = figure_module.Figure(figsize=(8, height), layout="constrained").add_subplot()
    names = list(rates)
    medians = [statistics.median(rates[name]) for name in names]
    colors = ["tab:blue" if median < max(medians) else "tab:green" for median in medians]
    ax.barh(names, medians, color=colors, alpha=0.6)
    for place, name in enumerate(names):
        ax.plot(rates[name], [place] * len(rates[name]), ".", color="black", markersize=4)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel(unit)
    ax.spines[["top", "right"]].set_visible(False)
    if path is not None:
        try:
            ax.figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:  # no such folder; no such kind of picture
            raise DestinationError(f"{path} cannot be drawn ({error}).") from error
    return ax
