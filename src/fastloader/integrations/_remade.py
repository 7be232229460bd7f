"""The same FastLoader over other batches, as frameworks ask for it."""

import copy
from typing import Any, TypeVar

from fastloader._loader import FastLoader

__all__ = ["remade"]

T = TypeVar("T", bound=FastLoader[Any])


def remade(loader: T, **changes: Any) -> T:
    """Return a loader like another one, with its own workers, and some attributes changed.

    Unlike one made from the options of the other, it still knows which of these were chosen
    and which the caller wrote.

    Args:
        loader: Is not changed.
        changes: Also of what may not be set after construction: sampler, batch sampler, batch
            size, `drop_last` and dataset, which have to fit together.
    """
    clone = copy.copy(loader)
    clone._epochs = copy.deepcopy(loader._epochs)  # noqa: SLF001 - each counts its own
    clone.__dict__.update(changes)  # past __setattr__, which refuses some
    return clone
