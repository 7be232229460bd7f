"""The batches of an order with their numbers, and what their sampler said after each."""

import logging
import pickle
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastloader.sampling._compact import CutBatches, IndexArray, IndexList
from fastloader.typing import Stateful

__all__ = ["Drawn", "DrawnBatches", "Stretch", "Uncut", "pickled_state"]

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


class Stretch(Sequence[Drawn]):
    """Batches that follow one another, whose indices lie in one piece.

    Each is an object only if it is asked for: to make one for each small batch takes longer than to
    gather all of them on a device.

    Args:
        first_number: Of the first batch in its epoch.
        indices: Of all samples.
        batch_size: Indices of each batch but the last.
    """

    def __init__(self, first_number: int, indices: IndexArray, batch_size: int) -> None:
        self.indices = indices
        self.numbers = range(first_number, first_number - (-len(indices) // batch_size))
        """Of the batches in their epoch."""
        self._size = batch_size

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        numbers = self.numbers[place]
        if isinstance(place, slice):
            return list(map(self._drawn, numbers))
        return self._drawn(numbers)

    def _drawn(self, number: int) -> Drawn:
        start = (number - self.numbers.start) * self._size
        stop = min(start + self._size, len(self.indices))
        return Drawn(number, self.indices.part(start, stop), None)

    def split(self, count: int) -> tuple["Stretch", "Stretch"]:
        """Return the first batches and the others.

        Args:
            count: How many are the first.
        """
        edge = min(count * self._size, len(self.indices))
        first, others = self.indices.part(0, edge), self.indices.part(edge, len(self.indices))
        return (
            Stretch(self.numbers.start, first, self._size),
            Stretch(self.numbers.start + count, others, self._size),
        )

    def lengths(self) -> npt.NDArray[np.int64]:
        """Return how many samples each batch has."""
        lengths = np.full(len(self), self._size)
        lengths[-1:] = len(self.indices) - (len(self) - 1) * self._size
        return lengths

    def rows(self) -> Iterator[npt.NDArray[np.int64]]:
        """Return the indices of each batch."""
        array = self.indices.array
        edge = len(array) - len(array) % self._size
        whole = array[:edge].reshape(-1, self._size)
        return chain(whole, [array[edge:]] if edge < len(array) else [])


class DrawnBatches:
    """An iterator of `Drawn`.

    Args:
        indices: Of one batch after the other.
        first_number: Of the first batch.
        done: Numbers of batches that are left out.
        sampler: Whose state goes with each batch.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        *,
        first_number: int = 0,
        done: frozenset[int] = frozenset(),
        sampler: Stateful | None = None,
    ) -> None:
        self._indices = indices
        # Where batches are cut from arrays: to wrap each, and to unwrap it here, takes longer than to cut it.
        self._next_array = indices.next_array if isinstance(indices, CutBatches) else None
        self._number = first_number
        self._done = done
        self._sampler = sampler
        self.is_ended = False
        """Whether the sampler has been asked for more than it has."""
        self.final_state: bytes | None = None
        """The pickled state of the sampler at the end of the order."""
        self.makes_lists = True
        """Whether indices that are an array are given as a list too, as samplers give them."""
        self.keeps_arrays = True
        """Whether such lists keep the array, for what reads whole batches."""

    def __iter__(self) -> Iterator[Drawn]:
        return self

    def __next__(self) -> Drawn:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the order.
        """
        while True:
            try:
                indices: Any
                if self._next_array is not None and self.makes_lists:
                    indices = self._as_list(self._next_array())
                else:
                    indices = next(self._indices)
                    if self.makes_lists and type(indices) is IndexArray:
                        indices = self._as_list(indices.array)
            except StopIteration:
                self.is_ended = True
                self.final_state = self._state()
                raise
            number = self._number
            self._number += 1
            if number not in self._done:
                state = None if self._sampler is None else self._state()
                return tuple.__new__(
                    Drawn, (number, indices, state)
                )  # whose own takes thrice as long

    def _as_list(self, array: npt.NDArray[np.int64]) -> list[int]:
        return IndexList(array) if self.keeps_arrays else array.tolist()

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
        if self._sampler is None:
            return None
        state = pickled_state(self._sampler)
        if state is None:
            self._sampler = None
        return state


def pickled_state(sampler: Stateful) -> bytes | None:
    """Return the state of a sampler as it is now; None, with a warning, if it cannot be pickled."""
    # Not kept as it is: samplers may give away what they go on to change.
    try:
        return pickle.dumps(sampler.state_dict(), pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        logger.warning(
            "The state_dict of %s cannot be pickled (%s), so its order is to be drawn again "
            "when this epoch is resumed.",
            type(sampler).__name__,
            error,
        )
        return None
