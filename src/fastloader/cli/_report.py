"""What a subcommand tells: for people, and for programs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Report"]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a subcommand."""

    text: str
    """For people."""
    values: Mapping[str, Any]
    """For programs (``--json``)."""
    exit_code: int = 0
    """0, or another where what was found is no good."""
