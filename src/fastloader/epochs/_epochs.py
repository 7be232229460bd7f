"""The epochs of a loader: which one comes next, where it begins, and how far the consumer is."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from fastloader.engine import StreamPoint
from fastloader.epochs._epoch_teller import EpochTeller
from fastloader.epochs._position import EpochPosition, MapPosition, StreamPosition
from fastloader.epochs._resumption import (
    Beginning,
    begin,
    check_state,
    check_threads,
    fresh_state,
    save_position,
)
from fastloader.sampling._epoch_order import EpochOrder, begin_epoch
from fastloader.sampling._foretelling import foretell_generators
from fastloader.sampling._permutations import PermutationsAhead

__all__ = ["BegunEpoch", "Epochs"]


class BegunEpoch(NamedTuple):
    """One pass over the data, about to be read."""

    epoch: int
    order: EpochOrder
    position: EpochPosition
    """To be kept up to date."""
    stream_points: Mapping[int, StreamPoint]
    """Where the workers go on with an iterable dataset."""
    next_worker: int
    remind: Callable[[], None] | None
    """To be called before the dataset itself, not a copy, is read; None where nobody wants to know the epoch,
    and so nobody can set another one before the first batch."""


class Epochs:
    """Counts the epochs of one loader, saves where it is, and goes on from there.

    **Processes:** the main one. It is plain data, so a pickled loader knows where it was.
    """

    def __init__(self) -> None:
        self._next = 0
        self._teller = EpochTeller()
        self._position: EpochPosition | None = None
        self._loaded: dict[str, Any] | None = None

    def set_epoch(self, loader: Any, epoch: int) -> None:
        """Let the next pass be that of an epoch."""
        if self._loaded is not None and self._loaded["epoch"] != epoch:
            self._loaded = None
        self._position = None
        self._next = epoch
        self._teller.tell(self._teller.targets(loader), loader.dataset, epoch)

    def begin(self, loader: Any, permutations: PermutationsAhead | None = None) -> BegunEpoch:
        """Begin the next pass, or go on with the one that was loaded.

        Args:
            loader: The loader, for its options as they are now.
            permutations: Of the loader, if some may be drawn ahead.
        """
        targets = self._teller.targets(loader)
        by_hand = self._teller.epoch_set_by_hand(targets) if targets else None
        epoch = self._next if by_hand is None else by_hand
        state, self._loaded = self._loaded, None
        if state is not None and by_hand is None:
            epoch = state["epoch"]
        beginning = begin(
            loader, state if state is not None and state["epoch"] == epoch else None
        )
        if targets:
            self._teller.tell(targets, loader.dataset, epoch)
        if permutations is not None:
            permutations.twins_of = partial(
                foretell_generators, generator=loader.generator, seed=loader.seed
            )
        order = begin_epoch(
            loader.sampler,
            loader.batch_sampler,
            is_iterable=isinstance(loader.dataset, IterableDataset),
            generator=loader.generator,
            seed=loader.seed,
            epoch=epoch,
            point=beginning.point,
            permutations=permutations,
        )
        self._next = epoch + 1
        self._position = _position_at(loader, epoch, order, beginning)
        return BegunEpoch(
            epoch,
            order,
            self._position,
            beginning.points,
            beginning.next_worker,
            partial(self._teller.remind, loader.dataset, epoch) if targets else None,
        )

    def is_overtaken(self, loader: Any, *, order_is_ended: bool) -> bool:
        """Return whether somebody has set an epoch since the latest pass began.

        Frameworks do, between asking for an iterator and for its first batch.
        """
        return self._teller.is_overtaken(
            self._teller.targets(loader), order_is_ended=order_is_ended
        )

    def state_dict(self, loader: Any) -> dict[str, Any]:
        """Return where the consumer of the pass that began last is."""
        check_threads(loader)
        if self._loaded is not None:
            return self._loaded
        if self._position is not None:
            self._position.catch_up()
            return save_position(loader, self._position)
        return fresh_state(loader, self._next)

    def load_state_dict(self, loader: Any, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state.

        Args:
            loader: The loader.
            state: From `state_dict` of a loader made alike.

        Raises:
            ResumeError: If the loader cannot go on from it.
        """
        check_threads(loader)
        check_state(loader, state)
        self._loaded = dict(state)
        self._position = None
        self._next = state["epoch"]
        if state.get("_iterator_finished") and state["start"]["base_seed"] is not None:
            # Some frameworks ask for the state before they have seen the end of the epoch, and
            # note it by torchdata's name: draw its order, as it was drawn, and go past it.
            self.begin(loader)
            self._position = None

    def skip_batches(self, loader: Any, num_batches: int) -> None:
        """Let the next pass leave out its first batches, without reading them.

        Args:
            loader: The loader, of a map-style dataset.
            num_batches: How many.
        """
        self._loaded = {**fresh_state(loader, self._next), "num_batches": num_batches}
        self._position = None


def _position_at(
    loader: Any, epoch: int, order: EpochOrder, beginning: Beginning
) -> EpochPosition:
    point = beginning.point
    num_batches = 0 if point is None else point.num_batches
    if isinstance(loader.dataset, IterableDataset):
        return StreamPosition(
            epoch,
            order.start,
            num_workers=loader.num_workers,
            num_batches=num_batches,
            points=beginning.points,
            next_worker=beginning.next_worker,
        )
    return MapPosition(
        epoch,
        order.start,
        num_batches=num_batches,
        done=frozenset() if point is None else point.done,
        sampler_state=order.sampler_state,
        is_over=point is not None and point.is_over,
        origin=beginning.origin,
    )
