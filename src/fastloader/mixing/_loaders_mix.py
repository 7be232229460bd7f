"""A mixture of loaders that each know how to read their own data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from torch.utils.data import DataLoader

from fastloader.epochs._epoch_teller import EpochTeller
from fastloader.errors import EmptyEpochError, ResumeError
from fastloader.inspection._lengths import length_if_known
from fastloader.mixing._mixture import Mixture
from fastloader.mixing._passes import PassCounter, count_turns
from fastloader.mixing._schedule import Schedule
from fastloader.mixing._timed_pass import Named, timed_pass
from fastloader.stats import LoaderStats
from fastloader.typing import Batch, Stateful

__all__ = ["LoadersMix"]


class LoadersMix:
    """Takes batches from loaders by the turns of a mixture.

    A loader is asked for a batch when it has the turn, never ahead, so where it is when a state
    is saved is where the consumer is.

    Args:
        loaders: Any iterables, by name.
        mixture: The rules.
        seed: Of the schedule.
        with_names: Whether to give ``(name, batch)``.
        turns_per_batch: Where a loader gives single samples: those in a batch, for which
            shares are kept.
    """

    def __init__(
        self,
        loaders: Mapping[str, Any],
        mixture: Mixture,
        seed: int,
        *,
        with_names: bool,
        turns_per_batch: int | None = None,
    ) -> None:
        self.loaders = dict(loaders)
        self.mixture = mixture
        self.epoch = 0
        self._seed = seed
        self._with_names = with_names
        self._turns_per_batch = turns_per_batch
        self._counter = PassCounter(len(loaders))
        self._place: _Place | None = None
        self._loaded: _Place | None = None
        self._stats: LoaderStats | None = None

    @property
    def stats(self) -> LoaderStats:
        """Of the mixture, with those of its loaders that measure themselves."""
        if self._stats is None:
            parts = {
                name: getattr(loader, "stats", None) for name, loader in self.loaders.items()
            }
            own = {name: part for name, part in parts.items() if isinstance(part, LoaderStats)}
            self._stats = LoaderStats(parts=own)
        return self._stats

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stats": None}  # a copy begins at zero

    def begin(self) -> Iterator[Any]:
        """Begin the next epoch, or go on in one that was loaded."""
        batches = timed_pass(self._begin_named(), self.stats, self.mixture.names)
        return batches if self._with_names else map(itemgetter(1), batches)

    def _begin_named(self) -> Iterator[tuple[Named, Batch]]:
        return self._begin_turns()

    def _begin_turns(self) -> Iterator[tuple[str, Batch]]:
        place, self._loaded = self._loaded, None
        if place is None:
            self._counter = self._counter.of_epoch(self.epoch)
            place = _Place(self.epoch, self.mixture, self._new_schedule(self.epoch))
        self._place = place
        self.epoch = place.epoch + 1
        return _LoadersEpoch(place, self.loaders, self._counter)

    def count_batches(self) -> float:
        """Return the batches of the next epoch, infinite if it never ends.

        Raises:
            TypeError: If the length of a loader is not known, and matters.
        """
        lengths = self._lengths()
        known = [length for length in lengths if length is not None]
        schedule = self._new_schedule(self.epoch)
        if len(known) < len(lengths):
            if schedule.is_fixed:
                return schedule.limit
            unknown = [
                name for name, n in zip(self.mixture.names, lengths, strict=True) if n is None
            ]
            raise TypeError(
                f"The sources {unknown} have no length, so the epoch has none: give a number "
                "as epoch_length, and stop='CYCLE_FOREVER' or 'auto'."
            )
        return count_turns(self.mixture, known, schedule, self._turns_per_batch or 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass gives; those after it count on from there."""
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None
        self._place = None
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is, from the loaders' own states and the schedule.

        Raises:
            ResumeError: If a loader has no state.
        """
        for name, loader in self.loaders.items():
            if not isinstance(loader, Stateful):
                raise ResumeError(
                    f"The source {name!r} is a {type(loader).__name__}, which has no "
                    "state_dict: make it a FastLoader, or give its dataset in place of it."
                )
        place = self._place if self._loaded is None else self._loaded
        is_under_way = place is not None and not place.is_finished
        return {
            "names": list(self.mixture.names),
            "weights": list(self.mixture.weights),
            "epoch": place.epoch if place is not None and is_under_way else self.epoch,
            "counter": self._counter.state_dict(),
            "place": place.state_dict() if place is not None and is_under_way else None,
            "sources": {name: loader.state_dict() for name, loader in self.loaders.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state.

        Raises:
            ResumeError: If it is that of other sources.
        """
        if list(state["names"]) != list(self.loaders):
            raise ResumeError(
                f"The state is that of the sources {list(state['names'])}, but here they are "
                f"{list(self.loaders)}."
            )
        for name, loader in self.loaders.items():
            loader.load_state_dict(state["sources"][name])
        self.mixture = replace(self.mixture, weights=tuple(state["weights"]))
        self.epoch = state["epoch"]
        self._counter.load_state_dict(state["counter"])
        self._place = self._loaded = None
        if (saved := state["place"]) is not None:
            mixture = replace(self.mixture, weights=tuple(saved["weights"]))
            schedule = self._new_schedule(self.epoch, mixture)
            schedule.load_state_dict(saved["schedule"])
            self._loaded = _Place(self.epoch, mixture, schedule, set(saved["open"]))

    def _new_schedule(self, epoch: int, mixture: Mixture | None = None) -> Schedule:
        mixture = self.mixture if mixture is None else mixture
        return Schedule(
            mixture,
            self._lengths(),
            seed=self._seed,
            epoch=epoch,
            block_size=self._turns_per_batch,
            turns_per_step=self._turns_per_batch or 1,
        )

    def _lengths(self) -> list[int | None]:
        return [length_if_known(loader) for loader in self.loaders.values()]


@dataclass
class _Place:
    """Where an epoch is."""

    epoch: int
    mixture: Mixture
    schedule: Schedule
    open: set[int] = field(default_factory=set)
    """Sources in the middle of a pass."""
    is_finished: bool = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": list(self.mixture.weights),
            "schedule": self.schedule.state_dict(),
            "open": sorted(self.open),
        }


class _LoadersEpoch:
    """One epoch: an iterator of names and batches."""

    def __init__(self, place: _Place, loaders: Mapping[str, Any], counter: PassCounter) -> None:
        self._place = place
        self._loaders = list(loaders.items())
        self._counter = counter
        self._iterators: list[Iterator[Batch] | None] = [None] * len(loaders)

    def __iter__(self) -> Iterator[tuple[str, Batch]]:
        return self

    def __next__(self) -> tuple[str, Batch]:
        schedule = self._place.schedule
        while (source := schedule.take_turn()) is not None:
            name, _ = self._loaders[source]
            if source in self._place.open:
                try:
                    return name, next(self._iterator_of(source))
                except StopIteration:
                    self._iterators[source] = None
                    self._place.open.discard(source)
                if not schedule.run_out(source):
                    continue
            return name, self._begin_pass(source)
        self._place.is_finished = True
        raise StopIteration

    def _iterator_of(self, source: int) -> Iterator[Batch]:
        iterator = self._iterators[source]
        if iterator is None:  # its pass was begun before a state was saved
            iterator = self._iterators[source] = iter(self._loaders[source][1])
        return iterator

    def _begin_pass(self, source: int) -> Batch:
        """Begin a pass over a source, and return its first batch.

        Raises:
            EmptyEpochError: If it has none.
        """
        name, loader = self._loaders[source]
        number = self._counter.begin_pass(source)
        _tell_epoch(loader, number)
        self._iterators[source] = None
        self._place.open.add(source)
        for batch in self._iterator_of(source):
            return batch
        raise EmptyEpochError(
            f"The source {name!r} gave no batch in pass {number} over it. An iterator or "
            "generator can be gone through once only: give a loader, a dataset, or an object "
            "whose __iter__ begins again."
        )


def _tell_epoch(loader: Any, number: int) -> None:
    """Tell a loader, or sampler and dataset of one that has no such method, which pass begins."""
    if callable(getattr(loader, "set_epoch", None)):
        loader.set_epoch(number)
    elif isinstance(loader, DataLoader):
        teller = EpochTeller()
        teller.tell(teller.targets(loader), loader.dataset, number)
