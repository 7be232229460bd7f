"""A mixture, inside each batch, of datasets that cannot be read by index."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import default_collate

from fastloader.mixing._loaders_mix import LoadersMix
from fastloader.mixing._mixture import Mixture
from fastloader.mixing._timed_pass import Named
from fastloader.typing import Batch

__all__ = ["SamplesMix"]


class SamplesMix(LoadersMix):
    """Takes single samples from loaders by the turns of a mixture, and collates them here.

    Args:
        loaders: Loaders of single samples, by name.
        mixture: The rules.
        seed: Of the schedule.
        batch_size: Samples in a batch.
        drop_last: Whether an incomplete last batch is left out.
        collate_fn: Makes a batch of a list of samples; None stands for torch's default.
        with_names: Whether to give ``(names of the samples, batch)``.
    """

    def __init__(
        self,
        loaders: Mapping[str, Any],
        mixture: Mixture,
        seed: int,
        *,
        batch_size: int,
        drop_last: bool,
        collate_fn: Callable[[list[Any]], Any] | None,
        with_names: bool,
    ) -> None:
        super().__init__(
            loaders, mixture, seed, with_names=with_names, turns_per_batch=batch_size
        )
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._collate_fn = collate_fn or default_collate

    def _begin_named(self) -> Iterator[tuple[Named, Batch]]:
        named = self._begin_turns()
        place = self._place
        while chunk := list(islice(named, self._batch_size)):
            is_last = len(chunk) < self._batch_size
            if is_last and self._drop_last:
                return
            names = tuple(name for name, _ in chunk)
            batch = self._collate_fn([sample for _, sample in chunk])
            if is_last and place is not None:
                place.is_finished = False  # the consumer has not seen the end yet
            yield names, batch
            if is_last and place is not None:
                place.is_finished = True
                return

    def count_batches(self) -> float:
        """Return the batches of the next epoch, infinite if it never ends."""
        num_batches = super().count_batches() / self._batch_size
        if math.isinf(num_batches):
            return num_batches
        return math.floor(num_batches) if self._drop_last else math.ceil(num_batches)
