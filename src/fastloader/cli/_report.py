"""What a subcommand tells: for people, and for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Cells", "Report"]

Cells: TypeAlias = Sequence[Sequence[str]]
"""Rows of a table, all of the same length; the first is the header."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a subcommand."""

    text: str
    """For people."""
    values: Mapping[str, Any]
    """For programs (``--json``)."""
    exit_code: int = 0
    """0, or another where what was found is no good."""
    parts: tuple[str | Cells, ...] = ()
    """The same as `text`, where a terminal can show it as tables."""
