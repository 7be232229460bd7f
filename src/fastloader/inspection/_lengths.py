"""The length of what may have none."""

from typing import Any

__all__ = ["length_if_known"]


def length_if_known(sized: Any) -> int | None:
    """Return the length of a dataset, sampler or loader, or None if it cannot tell.

    Args:
        sized: Any object. Torch's own classes raise one of two errors where there is no length.
    """
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
