"""Batches of indices from several datasets, by the turns of a mixture."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from fastloader.datasets import MixedDataset
from fastloader.datasets._mixed import source_seed
from fastloader.errors import EmptyEpochError, ResumeError, SettingsError
from fastloader.mixing._mixture import EpochLength, Mixture, StopRule, Strategy
from fastloader.mixing._passes import PassCounter, Passes, count_turns
from fastloader.mixing._schedule import Schedule
from fastloader.mixing._sizes import Unit, read_sizes
from fastloader.mixing._source_order import SourceOrder
from fastloader.sampling import DistributedSampler
from fastloader.sampling._compact import IndexList
from fastloader.stats import SourceCount

__all__ = ["MixedBatchSampler"]


class MixedBatchSampler(Sampler[list[int]]):
    """Batches of a `MixedDataset`: each from one source, or mixed of all.

    Give it to a loader as `batch_sampler`. What it gives is a function of its options and the
    epoch, the same for any number of workers; it can be saved and resumed by position.

    With several ranks, each takes its share of each source, and all take their turns alike:
    at every step all ranks read from the same sources, and all have as many steps.

    Args:
        dataset: The sources.
        batch_size: Samples in a batch; by name of the source where batches are not mixed, if
            they differ.
        mix: What a turn is for. ``"batches"``: each batch comes from one source.
            ``"samples"``: the turns are those of the samples in a batch.
        strategy: Whose turn it is. ``"round_robin"``: each in turn. ``"sequential"``: one
            source after the other, each as a whole. ``"weighted"``: exactly by `weights`, in
            an order redrawn each epoch. ``"random"``: drawn by `weights` at each turn.
            ``"pattern"``: by `pattern`.
        weights: Share of each source, by name, in any unit; 0 leaves a source out.
        pattern: Names of sources in the order of their turns, again and again.
        burst: Turns that a source takes in a row.
        stop: When an epoch ends, by torchdata's names. A source has run out when it has a turn
            and nothing left. ``"FIRST_DATASET_EXHAUSTED"``: when the first has.
            ``"ALL_DATASETS_EXHAUSTED"``: when all have; those that have run out are left out.
            ``"CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"``: when all have, once; until then sources
            that have run out begin again. ``"CYCLE_FOREVER"``: never. ``"auto"`` takes the
            last if `epoch_length` is given, the one before it if weights or a pattern ask for
            shares, else ``"ALL_DATASETS_EXHAUSTED"``, which gives each sample once.
        epoch_length: The most batches of an epoch: a number, or ``"sum"``, ``"max"`` or
            ``"min"`` of what the sources have. None leaves the end to `stop`.
        shuffle: Whether the samples of a source come in another order in each pass over it.
        drop_last: Whether an incomplete last batch is left out, of each pass over a source
            where batches are not mixed. With several ranks, also samples that would not
            fill the same number on all, which are else filled up with others.
        seed: Of all that is drawn; the same on all ranks.
        num_replicas: Number of ranks.
        rank: Number of this one, from 0.

    Raises:
        SettingsError: If options cannot work together.
        EmptyEpochError: If a source that takes part has no batch.

    Examples:
        >>> mixed = MixedDataset({"a": range(6), "b": range(3)})
        >>> list(MixedBatchSampler(mixed, 2, stop="FIRST_DATASET_EXHAUSTED"))[0]
        [9, 10]
    """

    def __init__(
        self,
        dataset: MixedDataset,
        batch_size: int | Mapping[str, int] = 1,
        *,
        mix: Unit = "batches",
        strategy: Strategy = "round_robin",
        weights: Mapping[str, float] | None = None,
        pattern: Sequence[str] | None = None,
        burst: int = 1,
        stop: StopRule | Literal["auto"] = "auto",
        epoch_length: int | EpochLength | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if mix not in {"batches", "samples"}:
            raise SettingsError(f"mix must be 'batches' or 'samples', but got {mix!r}.")
        if not 0 <= rank < num_replicas:
            raise SettingsError(
                f"rank must be from 0 to num_replicas - 1, but got rank={rank} with "
                f"num_replicas={num_replicas}."
            )
        self._rules = Mixture.of(
            dataset.names,
            strategy=strategy,
            weights=weights,
            pattern=pattern,
            burst=burst,
            stop=stop,
            epoch_length=epoch_length,
        )
        self.batch_size = batch_size
        self.mix = mix
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self._dataset = dataset
        self._sizes = read_sizes(dataset.names, batch_size, mix)
        self._step = self._sizes[0] if mix == "samples" else 1
        self._orders = [
            SourceOrder(
                DistributedSampler(
                    source,
                    num_replicas,
                    rank,
                    shuffle,
                    source_seed(seed, number),
                    drop_last,
                )
            )
            for number, source in enumerate(dataset.datasets.values())
        ]
        self._lengths = [self._num_items(source) for source in range(len(self._orders))]
        self._check_not_empty(self._rules)
        self._counter = PassCounter(len(self._orders))
        self._place: _Place | None = None
        self._loaded: _Place | None = None
        self._counted: tuple[Mixture, int, float] | None = None

    @property
    def mixture(self) -> Mixture:
        """The rules of the next epoch."""
        return self._rules

    @mixture.setter
    def mixture(self, mixture: Mixture) -> None:
        self._check_not_empty(mixture)
        self._rules = mixture

    @property
    def weights(self) -> dict[str, float]:
        """Share of each source in the next epoch, by name."""
        return dict(zip(self._rules.names, self._rules.weights, strict=True))

    @property
    def stop(self) -> StopRule:
        """The stop rule in force."""
        return self._rules.stop

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the shares from the next epoch on.

        Args:
            weights: By name; sources that are left out keep theirs.

        Raises:
            SettingsError: If the strategy has no weights, or these make no sense.
            EmptyEpochError: If a source that takes part now has no batch.
        """
        self.mixture = self._rules.with_weights(weights)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass gives.

        A `FastLoader` does so before each; a stock `DataLoader` does not.

        Args:
            epoch: Number of the epoch, from 0.
        """
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None
        if self._place is not None and self._place.is_finished:
            self._place = None
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches of the next epoch.

        Raises:
            TypeError: If it never ends.
        """
        num_batches = self.count_batches()
        if math.isinf(num_batches):
            raise TypeError("An epoch that cycles forever has no length: give epoch_length.")
        return int(num_batches)

    def count_batches(self) -> float:
        """Return the number of batches of the next epoch, infinite if it never ends."""
        if self._counted is None or self._counted[:2] != (self._rules, self.epoch):
            schedule = self._new_schedule(self.epoch, self._rules)
            num_turns = count_turns(self._rules, self._lengths, schedule, self._step)
            num_batches = num_turns
            if not math.isinf(num_turns):
                full, rest = divmod(num_turns, self._step)
                num_batches = full + bool(rest and not self.drop_last)
            self._counted = self._rules, self.epoch, num_batches
        return self._counted[2]

    def __iter__(self) -> Iterator[list[int]]:
        """Start the epoch that was set last, or go on in one that was loaded."""
        place, self._loaded = self._loaded, None
        if place is None:
            self._counter = self._counter.of_epoch(self.epoch)
            place = self._new_place(self.epoch, self._rules)
        self._place = place
        return self._batches(place)

    def _batches(self, place: "_Place") -> Iterator[list[int]]:
        while True:
            indices = self._draw_batch(place) if self._step == 1 else self._draw_mixed(place)
            if indices is None:
                place.is_finished = True
                return
            yield IndexList(indices)

    def _draw_batch(self, place: "_Place") -> npt.NDArray[np.int64] | None:
        turns = place.passes.draw(place.schedule, 1)
        if not len(turns):
            return None
        source = int(turns[0])
        number, end = place.passes.place(source)
        size = self._sizes[source]
        positions = self._orders[source].positions(number, (end - 1) * size, end * size)
        place.taken[source] += 1
        place.taken_samples[source] += len(positions)
        return self._dataset.indices_of(source, positions, number)

    def _draw_mixed(self, place: "_Place") -> npt.NDArray[np.int64] | None:
        parts: list[npt.NDArray[np.int64]] = []
        missing = self._step
        taken = list(place.taken_samples)
        while missing:
            turns = place.passes.draw(place.schedule, missing)
            if not len(turns):
                break
            indices = np.empty_like(turns)
            for source in set(turns.tolist()):
                where = turns == source
                number, end = place.passes.place(source)
                start = end - int(np.count_nonzero(where))
                taken[source] += end - start
                positions = self._orders[source].positions(number, start, end)
                indices[where] = self._dataset.indices_of(source, positions, number)
            parts.append(indices)
            missing -= len(turns)
        if not parts or (missing and self.drop_last):
            return None
        place.taken_samples = taken
        return np.concatenate(parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch under way, or before the next one: a few numbers."""
        place = self._place if self._loaded is None else self._loaded
        epoch, saved = self.epoch, None
        if place is not None and place.is_finished:
            epoch = place.epoch + 1
        elif place is not None:
            epoch, saved = place.epoch, place.state_dict()
        return {
            **self.rules_state(),
            "lengths": list(self._lengths),
            "epoch": epoch,
            "counter": self._counter.state_dict(),
            "place": saved,
            "taken": None if place is None else place.taken_dict(),
        }

    def count_sources(
        self, state: Mapping[str, Any] | None, epoch: int
    ) -> dict[str, SourceCount]:
        """Return what came of each source in an epoch, up to a state.

        Args:
            state: What `state_dict` returned; None, or one of another epoch, for the beginning.
            epoch: Number of the epoch.
        """
        taken = None if state is None else state.get("taken")
        if taken is None or taken["epoch"] != epoch:
            return dict.fromkeys(self._rules.names, SourceCount())
        counts = zip(taken["batches"], taken["samples"], strict=True)
        return {
            name: SourceCount(*count)
            for name, count in zip(self._rules.names, counts, strict=True)
        }

    def rules_state(self) -> dict[str, Any]:
        """Return what of the state does not depend on the place."""
        return {"names": list(self._rules.names), "weights": list(self._rules.weights)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on from a saved place.

        Args:
            state_dict: From `state_dict` of a sampler made with the same sources and options.

        Raises:
            ResumeError: If it is of other sources, or these had other lengths.
        """
        for key, own in (("names", list(self._rules.names)), ("lengths", self._lengths)):
            if list(state_dict[key]) != own:
                raise ResumeError(
                    f"The state is that of a mixture whose sources have {key} "
                    f"{list(state_dict[key])}, but here they have {own}: make the sampler with "
                    "the same sources, batch size and number of ranks."
                )
        weights = tuple(state_dict["weights"])
        self._rules = replace(self._rules, weights=weights)
        self.epoch = state_dict["epoch"]
        self._counter.load_state_dict(state_dict["counter"])
        self._place = self._loaded = None
        if (saved := state_dict["place"]) is not None:
            weights = tuple(saved["weights"])
            place = self._new_place(self.epoch, replace(self._rules, weights=weights))
            place.schedule.load_state_dict(saved["schedule"])
            place.passes.load_state_dict(saved["passes"])
            if (taken := state_dict.get("taken")) is not None:
                place.taken = list(taken["batches"])
                place.taken_samples = list(taken["samples"])
            self._loaded = place

    def _new_place(self, epoch: int, mixture: Mixture) -> "_Place":
        schedule = self._new_schedule(epoch, mixture)
        nothing = [0] * len(self._lengths)
        passes = Passes(self._lengths, self._counter)
        return _Place(epoch, mixture, schedule, passes, list(nothing), list(nothing))

    def _new_schedule(self, epoch: int, mixture: Mixture) -> Schedule:
        return Schedule(
            mixture,
            self._lengths,
            seed=self.seed,
            epoch=epoch,
            block_size=self._step if self.mix == "samples" else None,
            turns_per_step=self._step,
        )

    def _num_items(self, source: int) -> int:
        num_samples = len(self._orders[source])
        if self.mix == "samples":
            return num_samples
        full, rest = divmod(num_samples, self._sizes[source])
        return full + bool(rest and not self.drop_last)

    def _check_not_empty(self, mixture: Mixture) -> None:
        for source in mixture.participants:
            if not self._lengths[source]:
                raise EmptyEpochError(
                    f"The source {mixture.names[source]!r} has no batch: of its "
                    f"{self._dataset.lengths[source]} samples, {len(self._orders[source])} are "
                    f"left for a rank, at batch_size={self._sizes[source]} with "
                    f"drop_last={self.drop_last}. Leave the source out, or give it weight 0."
                )


@dataclass
class _Place:
    """Where an epoch is."""

    epoch: int
    mixture: Mixture
    schedule: Schedule
    passes: Passes
    taken: list[int]
    """Batches of each source, where they are not mixed."""
    taken_samples: list[int]
    """Samples of each source."""
    is_finished: bool = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "weights": list(self.mixture.weights),
            "schedule": self.schedule.state_dict(),
            "passes": self.passes.state_dict(),
        }

    def taken_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "batches": list(self.taken),
            "samples": list(self.taken_samples),
        }
