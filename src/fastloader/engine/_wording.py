"""Names the samples of a batch in messages."""

from contextlib import suppress
from typing import Any

from torch.utils.data import Subset

__all__ = ["name_place", "name_samples"]

LONGEST_LIST = 16


def name_samples(indices: Any) -> str:
    """Return words for the samples that a task asks for.

    Args:
        indices: Of a task: a list of indices, one index, or a list of None for an iterable
            dataset.
    """
    if not isinstance(indices, list | tuple):
        return f"sample {indices!r}"
    if not indices:
        return "no samples, as the batch sampler gave none"
    if all(index is None for index in indices):
        return f"the next {len(indices)} samples"
    shown = ", ".join(str(index) for index in indices[:LONGEST_LIST])
    more = len(indices) - LONGEST_LIST
    return f"samples {shown} and {more} more" if more > 0 else f"samples {shown}"


def name_place(index: Any, dataset: Any) -> str:
    """Return words for the place of a sample, also in the dataset that a `Subset` is of.

    Args:
        index: Of the sample in `dataset`.
        dataset: That of the loader.
    """
    words = f"index {index!r}"
    with suppress(Exception):  # where the index itself is what went wrong
        while type(dataset) is Subset:
            index, dataset = dataset.indices[index], dataset.dataset
            if type(dataset) is not Subset:
                words += f", which is index {index!r} of {type(dataset).__name__} in the Subset"
    return words
