"""The batches of an order with their numbers, and what their sampler said after each."""

import logging
import pickle
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastloader.sampling._compact import CutBatches, IndexArray, IndexList
from fastloader.typing import Stateful

__all__ = ["Drawn", "DrawnBatches", "Uncut"]

logger = logging.getLogger("fastloader")


class Drawn(NamedTuple):
    """One batch of an order."""

    number: int
    """Of the batch in its epoch, from 0."""
    indices: Any
    """Of its samples; a single index without batches."""
    sampler_state: bytes | None
    """The pickled state of the sampler after it gave this batch, if it has a ``state_dict``."""


class Uncut(NamedTuple):
    """Batches that follow one another, of an order without states."""

    first_number: int
    """Of the first batch in its epoch."""
    indices: npt.NDArray[np.int64]
    """Of their samples."""
    batch_size: int
    """Indices of each batch but the last of the order."""


class DrawnBatches:
    """An iterator of `Drawn`.

    Args:
        indices: Of one batch after the other.
        first_number: Of the first batch.
        done: Numbers of batches that are left out.
        sampler: Whose state goes with each batch, if it has one.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        *,
        first_number: int = 0,
        done: frozenset[int] = frozenset(),
        sampler: Any = None,
    ) -> None:
        self._indices = indices
        self._number = first_number
        self._done = done
        is_stateful = hasattr(sampler, "state_dict") and isinstance(sampler, Stateful)
        self._sampler = sampler if is_stateful else None
        self.final_state: bytes | None = None
        """The pickled state of the sampler at the end of the order."""
        self.makes_lists = True
        """Whether indices that are an array are given as a list too, as samplers give them."""

    def __iter__(self) -> Iterator[Drawn]:
        return self

    def __next__(self) -> Drawn:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the order.
        """
        while True:
            try:
                indices = next(self._indices)
            except StopIteration:
                self.final_state = self._state()
                raise
            if self.makes_lists and type(indices) is IndexArray:
                indices = IndexList(indices.array)
            number = self._number
            self._number += 1
            if number not in self._done:
                return Drawn(number, indices, self._state())

    def take(self, count: int) -> list[Drawn]:
        """Return the next batches, fewer at the end of the order."""
        if self._sampler is not None or self._done or self.makes_lists:
            return list(islice(self, count))
        numbers = range(self._number, self._number + count)
        drawn = list(map(Drawn, numbers, self._indices, repeat(None)))
        self._number += len(drawn)
        return drawn

    def take_uncut(self, most: int) -> Uncut | None:
        """Return the next batches in one array, which is empty at the end of the order.

        Args:
            most: Indices that there may be; of one batch at least.

        Returns:
            None if they do not come of arrays, or not one like the other: take them one by one.
        """
        batches = self._indices
        is_plain = self._sampler is None and not self._done and not self.makes_lists
        if not is_plain or not isinstance(batches, CutBatches):
            return None
        indices = batches.take_uncut(most)
        uncut = Uncut(self._number, indices, batches.batch_size)
        self._number += -(-len(indices) // batches.batch_size)
        return uncut

    def _state(self) -> bytes | None:
        # Not kept as it is: samplers may give away what they go on to change.
        if self._sampler is None:
            return None
        try:
            return pickle.dumps(self._sampler.state_dict(), pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            logger.warning(
                "The state_dict of %s cannot be pickled (%s), so its order is to be drawn again "
                "when this epoch is resumed.",
                type(self._sampler).__name__,
                error,
            )
            self._sampler = None
            return None
