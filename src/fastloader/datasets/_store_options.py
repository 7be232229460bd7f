"""Where the pixels of a dataset are kept once they are decoded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["StoreOptions"]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where decoded pixels are kept."""

    cache: Literal["shared", "disk", "none"]
    folder: Path | None
    """Of caches on disk; None where another cache was chosen."""
    max_bytes: int | None
    """Most bytes that a cache may take; what is free if None."""
