"""Tables of plain text."""

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return lines of columns, the first to the left and the others to the right.

    Args:
        rows: Of cells, all of the same length; the first is the header.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ])
        for row in rows
    )
