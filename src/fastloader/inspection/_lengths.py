"""The length of what may have none."""

from typing import Any

from fastloader.errors import SettingsError

__all__ = ["length_if_known", "length_of", "required_length"]


def length_if_known(sized: Any) -> int | None:
    """Return the length of a dataset, sampler or loader, or None if it cannot tell.

    Args:
        sized: Any object. Torch's own classes raise one of two errors where there is no length.
    """
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def required_length(sized: Any, remedy: str) -> int:
    """Return the length of what cannot do without one.

    Args:
        sized: A dataset or sampler of the caller's.
        remedy: What to do if it has none.

    Raises:
        SettingsError: If it has none.
    """
    try:
        return len(sized)
    except TypeError as error:
        raise SettingsError(f"{type(sized).__name__} has no length: {remedy}") from error


def length_of(dataset: Any) -> int:
    """Return how many samples a dataset has that is read by index.

    Args:
        dataset: Of a loader without a sampler of the caller's.

    Raises:
        TypeError: If it has no length.
    """
    if hasattr(type(dataset), "__len__"):
        return len(dataset)
    what = (
        f"the class {dataset.__name__}" if isinstance(dataset, type) else type(dataset).__name__
    )
    raise TypeError(
        f"dataset should have a length, as a map-style dataset or a sequence has, but got {what}: "
        "give one of these, or a sampler, or derive a stream from torch's IterableDataset."
    )
