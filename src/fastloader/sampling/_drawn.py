"""The batches of an order with their numbers, and what their sampler said after each."""

import logging
import pickle
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

from fastloader.sampling._compact import IndexArray, IndexList
from fastloader.typing import Stateful

__all__ = ["Drawn", "DrawnBatches"]

logger = logging.getLogger("fastloader")


class Drawn(NamedTuple):
    """One batch of an order."""

    number: int
    """Of the batch in its epoch, from 0."""
    indices: Any
    """Of its samples; a single index without batches."""
    sampler_state: bytes | None
    """The pickled state of the sampler after it gave this batch, if it has a ``state_dict``."""


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
        """Return the next batches, fewer at the end of the order.

        Args:
            count: How many.
        """
        if self._sampler is not None or self._done or self.makes_lists:
            return list(islice(self, count))
        numbers = range(self._number, self._number + count)
        drawn = list(map(Drawn, numbers, self._indices, repeat(None)))
        self._number += len(drawn)
        return drawn

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
