"""MixedLoader: several named loaders or datasets as one stream of batches."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from fastloader._loader import FastLoader
from fastloader._torch_internals import not_compiled
from fastloader.datasets import MixedDataset
from fastloader.datasets._mixed import check_sources
from fastloader.errors import SettingsError
from fastloader.machine._ranks import Ranks, read_ranks
from fastloader.mixing._batch_sampler import MixedBatchSampler
from fastloader.mixing._datasets_mix import DatasetsMix
from fastloader.mixing._loaders_mix import LoadersMix
from fastloader.mixing._mixture import EpochLength, Mixture, StopRule, Strategy
from fastloader.mixing._samples_mix import SamplesMix
from fastloader.mixing._sizes import Unit, read_sizes
from fastloader.mixing._sources import are_all_datasets, are_all_map_style, make_loaders
from fastloader.sampling._given_order import Distributed, is_accelerate_active
from fastloader.settings._given import as_epoch
from fastloader.stats import LoaderStats

__all__ = ["MixedLoader"]


class MixedLoader:
    """Several named datasets or loaders as one stream of batches.

    Where all sources are map-style datasets, one `FastLoader` reads them, with one set of
    workers: see `loader`, which is what frameworks should be given that only know a
    `DataLoader`. Loaders and iterable datasets keep a loader each, asked for a batch only when
    it has the turn; the workers of those that are made here share one budget.

    What comes is a function of options, seed and epoch: the same for any number of workers, and
    the same turns on every rank, without a word between them. Each pass over a source is an
    epoch of its own for it, with another order and other random changes.

    Args:
        sources: Datasets and loaders by name. Anything with ``__getitem__`` that is no
            `DataLoader` is a map-style dataset, anything else that can be iterated a loader.
        batch_size: Of the batches made of datasets: samples, or samples by name of the source.
        mix: What a turn is for. ``"batches"``: each batch comes from one source.
            ``"samples"``: the turns are those of the samples in a batch; only for datasets.
        strategy: Whose turn it is. ``"round_robin"``: each in turn. ``"sequential"``: one
            source after the other, each as a whole. ``"weighted"``: exactly by `weights`, in
            an order redrawn each epoch. ``"random"``: drawn by `weights` at each turn.
            ``"pattern"``: by `pattern`.
        weights: Share of each source, by name, in any unit; 0 leaves a source out.
        pattern: Names of sources in the order of their turns, again and again.
        burst: Turns that a source takes in a row; weights hold all the same.
        stop: When an epoch ends, by torchdata's names; a source has run out when it has a turn
            and nothing left. ``"FIRST_DATASET_EXHAUSTED"``: when the first has.
            ``"ALL_DATASETS_EXHAUSTED"``: when all have; those that have run out are left out.
            ``"CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED"``: when all have, once; until then sources
            that have run out begin again. ``"CYCLE_FOREVER"``: never. ``"auto"`` takes the
            last if `epoch_length` is given, the one before it if weights or a pattern ask for
            shares, else ``"ALL_DATASETS_EXHAUSTED"``, which gives everything once.
        epoch_length: The most batches of an epoch: a number, or ``"sum"``, ``"max"`` or
            ``"min"`` of what the sources have. None leaves the end to `stop`.
        shuffle: Whether the samples of map-style datasets come in another order in each pass.
        drop_last: Whether an incomplete last batch is left out: of each pass over a source, or
            of the epoch where batches are mixed.
        with_names: Whether to give ``(name, batch)``; where batches are mixed,
            ``(names of the samples, batch)``.
        seed: Of all that is drawn; the same on all ranks.
        num_workers: Worker processes of all datasets together.
        distributed: Whether each rank reads its share of each dataset: True, or ``"auto"`` to
            do so unless Accelerate shares out all loaders. Loaders are left as they are, and
            so are iterable datasets that do not declare shards enough.
        **options: Any other option of `FastLoader`, for the loaders that are made here.

    Raises:
        SettingsError: If options cannot work together.
        EmptyEpochError: If a source that takes part has no batch.

    Examples:
        >>> sources = {"few": range(4), "many": range(100, 112)}
        >>> mixed = MixedLoader(sources, 2, strategy="weighted", weights={"few": 1, "many": 3})
        >>> len(mixed)
        8
        >>> mixed = MixedLoader(
        ...     sources,
        ...     4,
        ...     mix="samples",
        ...     strategy="pattern",
        ...     pattern=["few", "many", "many", "many"],
        ... )
        >>> [batch.tolist() for batch in mixed][:2]
        [[0, 100, 101, 102], [1, 103, 104, 105]]
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
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
        with_names: bool = False,
        seed: int = 0,
        num_workers: int | Literal["auto"] = "auto",
        distributed: Distributed = False,
        **options: Any,
    ) -> None:
        _check_options(options, with_names=with_names)
        rules: dict[str, Any] = {
            "strategy": strategy,
            "weights": weights,
            "pattern": pattern,
            "burst": burst,
            "stop": stop,
            "epoch_length": epoch_length,
        }
        check_sources(sources)
        self._with_names = with_names
        self._mix: DatasetsMix | LoadersMix
        if are_all_map_style(sources):
            ranks = _ranks_to_share(distributed)
            dataset = MixedDataset(sources, with_names=with_names)
            sampler = MixedBatchSampler(
                dataset,
                batch_size,
                mix=mix,
                **rules,
                shuffle=shuffle,
                drop_last=drop_last,
                seed=seed,
                num_replicas=ranks.world_size,
                rank=ranks.rank,
            )
            self._mix = DatasetsMix(
                dataset, sampler, {**options, "num_workers": num_workers, "seed": seed}
            )
            return
        if mix == "samples":
            _check_sample_options(sources, options)
        sizes = read_sizes(tuple(sources), batch_size, mix)
        mixture = Mixture.of(tuple(sources), **rules)
        collate_fn = options.pop("collate_fn", None) if mix == "samples" else None
        is_cut = drop_last and mix == "batches"
        loaders = make_loaders(
            sources,
            dict.fromkeys(sources)
            if mix == "samples"
            else dict(zip(sources, sizes, strict=True)),
            weights=mixture.weights,
            one_at_a_time=strategy == "sequential",
            num_workers=num_workers,
            seed=seed,
            shuffle=shuffle,
            distributed=distributed,
            options={**options, **({"drop_last": True} if is_cut else {})},
        )
        if mix == "batches":
            self._mix = LoadersMix(loaders, mixture, seed, with_names=with_names)
            return
        self._mix = SamplesMix(
            loaders,
            mixture,
            seed,
            batch_size=sizes[0],
            drop_last=drop_last,
            collate_fn=collate_fn,
            with_names=with_names,
        )

    @property
    def loader(self) -> FastLoader[Any] | None:
        """The one loader that reads all sources, where there is one.

        It is a `DataLoader` that gives the same batches, for frameworks that want one.
        """
        return self._mix.loader if isinstance(self._mix, DatasetsMix) else None

    @property
    def loaders(self) -> Mapping[str, Any]:
        """The loader of each source, by name; the same for all where one reads all sources."""
        return dict(self._mix.loaders)

    @property
    def stats(self) -> LoaderStats:
        """What the mixture measures of itself, as a whole and by source.

        Its `snapshot` tells in `sources` which part of the samples each source gave. Where each
        source has a loader, it tells as well how long each was waited for, and what its loader
        has measured of itself; what is made ahead is then that of all together.
        """
        return self._mix.stats

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return self._mix.mixture.names

    @property
    def with_names(self) -> bool:
        """Whether batches come with the name of their source, or the names of their samples."""
        return self._with_names

    @property
    def weights(self) -> dict[str, float]:
        """Share of each source in the next epoch, by name."""
        return dict(zip(self.names, self._mix.mixture.weights, strict=True))

    @property
    def stop(self) -> StopRule:
        """The stop rule in force."""
        return self._mix.mixture.stop

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Change the shares from the next epoch on.

        Args:
            weights: By name; sources that are left out keep theirs.

        Raises:
            SettingsError: If the strategy has no weights, or these make no sense.
            EmptyEpochError: If a source that takes part now has no batch.
        """
        self._mix.mixture = self._mix.mixture.with_weights(weights)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass gives; those after it count on from there.

        Nobody has to: each pass is the next epoch by itself.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            SettingsError: If `epoch` is negative or no whole number.
        """
        self._mix.set_epoch(as_epoch(epoch))

    def __len__(self) -> int:
        """Return the number of batches of the next epoch.

        Raises:
            TypeError: If it never ends, or the length of a source is not known and matters.
        """
        num_batches = self._mix.count_batches()
        if math.isinf(num_batches):
            raise TypeError("An epoch that cycles forever has no length: give epoch_length.")
        return int(num_batches)

    @not_compiled
    def __iter__(self) -> Iterator[Any]:
        """Start the next epoch, or go on in one that was loaded.

        It starts when the first batch is asked for: frameworks call this to see whether they
        can iterate, and throw the result away.
        """
        yield from self._mix.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest pass is, to go on from there later.

        The names are torchdata's. Batches that the consumer has got count; after the end of an
        epoch the state is that before the next one.

        Raises:
            ResumeError: If a source is a loader without ``state_dict``.
        """
        return self._mix.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on from a saved state; what lies before it is not read.

        Args:
            state_dict: From `state_dict` of a mixture made with the same sources and options.

        Raises:
            ResumeError: If this mixture cannot go on from it.
        """
        self._mix.load_state_dict(state_dict)


def _ranks_to_share(distributed: Distributed) -> Ranks:
    """Return the ranks that share the samples.

    Raises:
        SettingsError: If Accelerate would share them once more.
    """
    if distributed is True and is_accelerate_active():
        raise SettingsError(
            "distributed=True cannot share these samples: Accelerate shares out every loader "
            "that it prepares. Leave distributed out, or set it to 'auto'."
        )
    if distributed and not is_accelerate_active():
        return read_ranks()
    return Ranks(0, 1, "not asked for")


def _check_sample_options(sources: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse what single samples cannot be mixed from.

    Raises:
        SettingsError: If there is a loader among the sources, or an option for whole batches.
    """
    if not are_all_datasets(sources):
        raise SettingsError(
            "Only datasets can be mixed inside a batch: leave mix out, or give datasets in place "
            "of loaders."
        )
    for_batches = {"batch_transform", "device_transform", "device", "pin_memory"}
    if given := sorted(for_batches & options.keys()):
        raise SettingsError(
            f"{given} are for batches that one loader makes, but samples of iterable datasets "
            "are put together in this process: do that work in the loop, or in collate_fn."
        )


def _check_options(options: Mapping[str, Any], *, with_names: bool) -> None:
    """Refuse options that a mixture decides itself.

    Raises:
        SettingsError: If there is one.
    """
    decided = {"dataset", "sampler", "batch_sampler", "generator"} & options.keys()
    if decided:
        raise SettingsError(
            f"{sorted(decided)} cannot be given: a mixture decides what is read, by strategy, "
            "shuffle and seed."
        )
    if with_names and options.get("on_error") == "skip":
        raise SettingsError(
            "with_names=True tells the source of each sample, and on_error='skip' leaves "
            "samples out: choose one."
        )
