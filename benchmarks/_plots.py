"""Draw the results of a benchmark: a row for each configuration, or for each table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

from _pages import is_limit, label_of, rate_of, tables_of
from _verdict import why_missing

__all__ = ["draw"]

_OURS, _OTHERS, _LIMIT = "#0b6e4f", "#9aa5b1", "#c1440e"
_THOUSANDS = EngFormatter(sep="")
_COLOURS = (
    "#9aa5b1",
    "#3b7dd8",
    "#0b6e4f",
    "#8e5ea2",
    "#e0a030",
    "#c1440e",
    "#5b5b5b",
    "#40b0a6",
)
_MARKERS = "osD^vP*X"


def draw(
    document: Mapping[str, Any], path: Path, digest: str, *, by_ratio: bool = False
) -> None:
    """Write a plot as SVG.

    Args:
        document: What a benchmark wrote.
        path: Where to.
        digest: Of the document, kept in the file so that an old plot can be told.
        by_ratio: Whether to show how many times as good as its baseline each is, and not rates or
            times: for tables whose rates have nothing to do with each other.
    """
    # The same bytes for the same results: no date, no random names.
    style: Any = {"svg.hashsalt": "fastloader", "svg.fonttype": "none", "font.size": 9}
    with mpl.rc_context(style):
        tables = tables_of(document)
        figure = _draw_bars(document) if len(tables) == 1 else _draw_dots(document, by_ratio)
        figure.savefig(
            path,
            format="svg",
            bbox_inches="tight",
            metadata={"Date": None, "Description": digest, "Creator": None},
        )


def _unit(quantity: str) -> str:
    if quantity.endswith("samples_per_second"):
        kind = quantity.removesuffix("samples_per_second").replace("_", " ").strip()
        return f"samples per second{f', {kind}' if kind else ''}"
    if quantity == "bytes_per_second":
        return "bytes per second"
    unit = ", seconds" if quantity.endswith("_seconds") else ""
    return f"{quantity.removesuffix('_seconds').replace('_', ' ')}{unit} (less is better)"


def _is_ours(label: str) -> bool:
    return "FastLoader" in label or label.startswith(("ours", "OMEArrowDataset", "ChannelStat"))


def _draw_bars(document: Mapping[str, Any]) -> Figure:
    """Draw one table: bars with quartiles, and the limit as a line."""
    ((table, members),) = tables_of(document).items()
    quantity = rate_of(document)
    rows = [(name, one) for name, one in members.items() if not is_limit(name, one)]
    figure = Figure(figsize=(7.2, 0.9 + 0.27 * len(rows)))
    axes = figure.add_subplot()
    for place, (name, one) in enumerate(rows):
        if "cannot_run" in one or quantity not in one["summary"]:
            reason = why_missing({"cannot_run": "nothing to compare", **one})
            axes.text(0, place, f" {reason}"[:90], va="center", color="#777777")
            continue
        median, q1, q3 = (one["summary"][quantity][part] for part in ("median", "q1", "q3"))
        colour = _OURS if _is_ours(label_of(name, table)) else _OTHERS
        axes.barh(place, median, color=colour, height=0.7)
        axes.plot([q1, q3], [place, place], color="black", linewidth=1)
        axes.text(
            q3, place, f" {median:,.3g}" if median < 100 else f" {median:,.0f}", va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0, "alpha": 0.8},
        )  # fmt: skip
    _draw_limits(axes, members, quantity)
    axes.set_yticks(range(len(rows)), [label_of(name, table) for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # rows without a bar too
    axes.set_xlabel(_unit(quantity))
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)
    if axes.get_xlim()[1] >= 1000:
        axes.xaxis.set_major_formatter(_THOUSANDS)
    _tidy(axes)
    return figure


def _draw_limits(axes: Axes, members: Mapping[str, Any], quantity: str) -> None:
    for name, one in members.items():
        if is_limit(name, one) and quantity in one.get("summary", {}):
            rate = one["summary"][quantity]["median"]
            axes.axvline(rate, color=_LIMIT, linestyle="--", linewidth=1, label=name)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, ncols=2)


def _draw_dots(document: Mapping[str, Any], by_ratio: bool) -> Figure:
    """Draw many tables: a row for each, a mark for each configuration."""
    tables = tables_of(document)
    quantity = rate_of(document)
    of_marks: dict[str, list[tuple[int, Mapping[str, Any], bool]]] = {}
    for row, (table, members) in enumerate(tables.items()):
        for name, one in members.items():
            label = _mark_of(name, table, one) if by_ratio else label_of(name, table)
            shown = (
                one.get("times_baseline") if by_ratio else one.get("summary", {}).get(quantity)
            )
            if shown:
                of_marks.setdefault(label, []).append((row, shown, is_limit(label, one)))
    figure = Figure(figsize=(7.2, 1.0 + 0.32 * len(tables)))
    axes = figure.add_subplot()
    # What is several things in a row is drawn first, in grey.
    in_order = sorted(of_marks.items(), key=lambda one: len(one[1]) <= len(tables))
    for place, (label, marks) in enumerate(in_order):
        # With more than eight, colours come again with other marks.
        colour = _COLOURS[place % len(_COLOURS)]
        marker = _MARKERS[(place + place // len(_COLOURS)) % len(_MARKERS)]
        if any(one_is_limit for _, _, one_is_limit in marks):
            marker, colour = "|", _LIMIT
        xs = [shown["median"] for _, shown, _ in marks]
        ys = [row for row, _, _ in marks]
        lows = [shown["median"] - shown["q1"] for _, shown, _ in marks]
        highs = [shown["q3"] - shown["median"] for _, shown, _ in marks]
        axes.errorbar(
            xs, ys, xerr=[lows, highs], linestyle="none", label=label, markersize=6,
            marker=marker, color=colour, elinewidth=1, alpha=0.9,
        )  # fmt: skip
    _count_by_factors(axes)
    for row, (_, members) in enumerate(tables.items()):
        reasons = [one["cannot_run"] for one in members.values() if "cannot_run" in one]
        if len(reasons) == len(members):
            axes.text(
                0.01, row, f"cannot run: {reasons[0]}"[:90], va="center", color="#777777",
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip
    axes.set_yticks(range(len(tables)), list(tables))
    axes.set_ylim(len(tables) - 0.5, -0.5)
    axes.set_xlabel("times the baseline of each row" if by_ratio else _unit(quantity))
    if by_ratio:
        axes.axvline(1, color="black", linewidth=0.8)
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), frameon=False, ncols=2)
    axes.grid(axis="y", color="#eeeeee")
    _tidy(axes)
    return figure


def _mark_of(name: str, table: str, result: Mapping[str, Any]) -> str:
    """Return what a configuration is called in a legend: variants of one thing have one name."""
    group = result.get("group", "")
    return label_of(name, table) if group in {"", name, table} else group


def _count_by_factors(axes: Axes) -> None:
    """Make the axis of values logarithmic, with numbers as they are written."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    is_short = high < 50 * low  # powers of ten alone would be one or two
    subs: tuple[float, ...] = (1, 2, 5) if is_short else (1,)
    if high < 5 * low:
        subs = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _place: f"{value:g}" if value < 1000 else _THOUSANDS(value))
    )
    axes.xaxis.set_minor_formatter(NullFormatter())


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
