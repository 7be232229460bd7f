"""One pass over the data in the calling process, into buffers that are used again."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import default_collate

from fastloader._buffers import Allocator, allocating_with
from fastloader._seeding import DrawScope, draw_scope, isolated_generators
from fastloader.engine._collate import collate_map_into, default_collate_into
from fastloader.engine._fetch import AllSkippedError, FetchPlan, SkippedSample, make_fetcher
from fastloader.typing import Batch

__all__ = ["InProcessRun"]

logger = logging.getLogger("fastloader")


class InProcessRun:
    """A stream of the batches of one pass, each made when it is asked for.

    Random draws are those that a worker would make: the global generators are seeded for each
    batch and put back after it, except for datasets that make whole batches, which draw
    nothing from them.

    Args:
        plan: What to read and how.
        order: Indices of one batch after the other.
        allocate: Makes the tensors of the batches.
        scope: Base seed and epoch.
        rank: Of this process in the run.
        first_number: Number of the first batch; more than 0 when an epoch is resumed.
        skipped: Takes the samples that were left out.
    """

    def __init__(
        self,
        plan: FetchPlan,
        order: Iterator[Any],
        *,
        allocate: Allocator,
        scope: DrawScope,
        rank: int,
        first_number: int,
        skipped: list[SkippedSample],
    ) -> None:
        collate = plan.collate_fn
        if collate is default_collate:
            table = collate_map_into(allocate)
            collate = lambda samples: default_collate_into(samples, table)  # noqa: E731
        self._isolates = plan.batched is None
        self._order = order
        self._allocate = allocate
        self._scope = scope
        self._rank = rank
        self._number = first_number
        self._skipped = skipped
        with self._surroundings():
            self._fetcher = make_fetcher(plan, collate)

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            StopIteration: At the end of the pass.
        """
        while True:
            indices = next(self._order)
            try:
                with self._surroundings():
                    return self._fetcher.fetch(indices)
            except AllSkippedError:
                continue
            finally:
                self._number += 1
                self._note_skipped()

    def next_if_ready(self) -> list[Batch]:
        """Return the next batch in a list: nothing else is doing the work."""
        try:
            return [next(self)]
        except StopIteration:
            return []

    def close(self) -> None:
        """Do nothing: no work is under way."""

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        scope = self._scope
        with draw_scope(scope), allocating_with(self._allocate):
            if self._isolates:
                with isolated_generators(scope.seed, scope.epoch, self._rank, self._number):
                    yield
            else:
                yield

    def _note_skipped(self) -> None:
        for skip in self._fetcher.skipped:
            self._skipped.append(skip)
            logger.warning("Skipped the sample at index %s: %s", skip.index, skip.error)
        self._fetcher.skipped.clear()
