"""Prints a report: tables of rich on a terminal that has it, plain text anywhere else."""

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastloader.cli._report import Cells, Report

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["show"]

_STYLES = {"ok": "green", "note": "yellow", "bites": "bold red", "<- best": "green"}
"""Of cells that say only this."""


def show(report: Report) -> None:
    """Print what a subcommand tells people."""
    if not (report.parts and sys.stdout.isatty() and find_spec("rich")):
        print(report.text)
        return
    from rich.console import Console  # noqa: PLC0415 - of an extra, and help needs none

    console = Console()
    for part in report.parts:
        if isinstance(part, str):
            console.print(part, markup=False, highlight=False, soft_wrap=True)
        else:
            for cells in _fitting(part, console.width):
                console.print(_make_table(cells))


def _fitting(cells: Cells, width: int) -> list[Cells]:
    """Return a table of numbers so that none is cut off: many columns read as well as rows."""
    if not _are_numbers(cells) or _width_of(cells) <= width:
        return [cells]
    turned = [*zip(*cells, strict=True)]
    if _width_of(turned) <= width:
        return [turned]
    return [[*zip(cells[0], row, strict=True)] for row in cells[1:]]


def _make_table(cells: Cells) -> "Table":
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(zip(*cells, strict=True)):
        is_number = number > 0 and all(_is_number(cell) for cell in column[1:])
        table.add_column(
            Text(column[0]),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in cells[1:]:
        table.add_row(*(Text(cell, _STYLES.get(cell, "")) for cell in row))
    return table


def _are_numbers(cells: Cells) -> bool:
    return all(_is_number(cell) for row in cells[1:] for cell in row[1:])


def _is_number(cell: str) -> bool:
    return cell == "-" or cell[:1].isdecimal()


def _width_of(cells: Cells) -> int:
    return 1 + sum(3 + max(map(len, column)) for column in zip(*cells, strict=True))
