"""What a turn of a mixture is for, and how many samples a batch has."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from fastloader.errors import SettingsError

__all__ = ["Unit", "read_sizes"]

Unit: TypeAlias = Literal["batches", "samples"]
"""What a turn is for: a whole batch, or one sample of a batch."""


def read_sizes(
    names: Sequence[str], batch_size: int | Mapping[str, int], mix: Unit
) -> list[int]:
    """Return the batch size of each source.

    Args:
        names: Of the sources.
        batch_size: As the caller gave it.
        mix: What a turn is for.

    Raises:
        SettingsError: If the sizes make no sense.
    """
    if isinstance(batch_size, Mapping):
        if mix == "samples":
            raise SettingsError(
                "Batches mixed of all sources have one size: give batch_size as a number, and "
                "the shares as weights."
            )
        if set(batch_size) != set(names):
            raise SettingsError(
                f"batch_size must name each source, {sorted(names)}, but got "
                f"{sorted(batch_size)}."
            )
        sizes = [batch_size[name] for name in names]
    else:
        sizes = [batch_size] * len(names)
    for size in sizes:
        if type(size) is not int or size < 1:
            raise SettingsError(f"batch_size must be 1 or more, but got {batch_size!r}.")
    return sizes
