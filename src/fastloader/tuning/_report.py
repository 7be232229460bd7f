"""What `tune` has found: the settings, and all that was measured on the way."""

from dataclasses import dataclass
from typing import Any

from fastloader.measuring._table import format_table
from fastloader.settings._settings import LoaderSettings
from fastloader.tuning._row import Row

__all__ = ["TuningReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningReport:
    """The result of `measure_settings`; print it."""

    settings: LoaderSettings
    """The best that was found."""
    rows: tuple[Row, ...]
    """What was tried, in that order."""
    best: Row
    """The one that the settings are from."""
    notes: tuple[str, ...]
    """What was left out, and why."""
    seconds: float
    """That it took."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "settings": self.best.candidate.options(),
            "rows": [
                {
                    "label": row.candidate.label(),
                    **row.candidate.options(),
                    "batches_per_second": row.rate,
                    "all_batches_per_second": row.rates,
                    "gain": row.gain,
                    "outcome": row.outcome,
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        """Return a table for people."""
        cells = self.cells()
        table = format_table([row[:3] for row in cells]).splitlines()
        lines = [f"{line}  {row[3]}".rstrip() for line, row in zip(table, cells, strict=True)]
        return "\n".join([*lines, self.verdict()])

    def cells(self) -> list[tuple[str, ...]]:
        """Return the cells of the table row by row, the header first."""
        return [("setting", "batches/s", "x the best", ""), *map(self._cells, self.rows)]

    def verdict(self) -> str:
        """Return what was left out, and what was chosen."""
        options = self.best.candidate.options()
        chosen = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return "\n".join([*self.notes, f"best after {self.seconds:.0f} s: {chosen}"])

    def _cells(self, row: Row) -> tuple[str, str, str, str]:
        rate = (
            "-"
            if row.rate is None
            else f"{row.rate:,.3g}"
            if row.rate < 100
            else f"{row.rate:,.0f}"
        )
        gain = "-" if row.gain is None else f"{row.gain:.2f}"
        mark = "<- best" if row is self.best else row.outcome
        return row.candidate.label(), rate, gain, mark
