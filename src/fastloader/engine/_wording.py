"""Names the samples of a batch in messages."""

from typing import Any

__all__ = ["name_samples"]

LONGEST_LIST = 16


def name_samples(indices: Any) -> str:
    """Return words for the samples that a task asks for.

    Args:
        indices: Of a task: a list of indices, one index, or a list of None for an iterable
            dataset.
    """
    if not isinstance(indices, list | tuple):
        return f"sample {indices!r}"
    if indices and all(index is None for index in indices):
        return f"the next {len(indices)} samples"
    shown = ", ".join(str(index) for index in indices[:LONGEST_LIST])
    more = len(indices) - LONGEST_LIST
    return f"samples {shown} and {more} more" if more > 0 else f"samples {shown}"
