"""Several map-style datasets as one, that know which pass over each of them is being read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate

from fastloader._notes import add_note, user_block
from fastloader.datasets._batched import as_batched, as_positions
from fastloader.datasets._merge import UnlikeBatchesError, merge_batches
from fastloader.datasets._pass_gate import PassGate
from fastloader.errors import SettingsError
from fastloader.randomness._seeding import (
    DrawScope,
    current_draw_scope,
    derive_seed,
    draw_scope,
)
from fastloader.sampling._compact import IndexList
from fastloader.typing import Batch, BatchedDataset, Sample

__all__ = ["MixedDataset", "check_sources", "source_seed"]

_SOURCE = 3
"""Tells the seed of a source from other seeds made of the same number."""


def check_sources(sources: object) -> None:
    """Refuse sources without names, and what can be none.

    Raises:
        SettingsError: If it is no mapping, or a value gives neither samples nor batches.
    """
    if not isinstance(sources, Mapping):
        raise SettingsError(
            "sources should be a mapping from names to datasets or loaders, such as "
            f"{{'first': ..., 'second': ...}}, but got a {type(sources).__name__}."
        )
    for name, source in sources.items():
        if not (hasattr(source, "__getitem__") or hasattr(source, "__iter__")):
            raise SettingsError(
                f"source {name!r} should be a dataset or a loader, but got {source!r}."
            )


class MixedDataset(Dataset[Any]):
    """Named map-style datasets, the sources, one behind the other.

    It makes whole batches if all sources do, and reads many samples in one call if any can. The
    random draws of a sample depend on its source and on the pass over that source, so that two
    sources draw different numbers, and so do two passes over one source in the same epoch.

    **Indices:** from 0 to ``len(self) - 1``, as in torch's `ConcatDataset`. Those from
    ``len(self)`` on stand for the same samples in pass 0, 1, 2 and so on over their source: see
    `indices_of`. Before the first sample of a pass is read, a source with a method
    ``set_epoch`` is told the number of the pass; this happens where the sample is read, so in
    live workers too.

    Args:
        sources: Datasets by name.
        with_names: Whether a sample is ``(name of its source, sample)``.

    Raises:
        SettingsError: If there is no source, or an iterable one, or they have no names.

    Examples:
        >>> mixed = MixedDataset({"digits": range(3), "letters": "ab"}, with_names=True)
        >>> list(mixed)
        [('digits', 0), ('digits', 1), ('digits', 2), ('letters', 'a'), ('letters', 'b')]
    """

    def __new__(cls, sources: Mapping[str, Any], *, with_names: bool = False) -> Self:  # noqa: ARG004
        """Make one that reads as its sources can: torch looks at which methods there are."""
        check_sources(sources)
        if cls is not MixedDataset:
            return super().__new__(cls)
        kind: type[MixedDataset] = MixedDataset
        if all(as_batched(source) is not None for source in sources.values()):
            kind = _BatchedMix
        elif any(callable(getattr(s, "__getitems__", None)) for s in sources.values()):
            kind = _ListedMix
        return cast("Self", super().__new__(kind))

    def __init__(self, sources: Mapping[str, Any], *, with_names: bool = False) -> None:
        if not sources:
            raise SettingsError("A mixture needs one source or more, but got none.")
        for name, source in sources.items():
            if isinstance(source, IterableDataset):
                raise SettingsError(
                    f"The source {name!r} is an IterableDataset, whose samples have no index: "
                    "give it to MixedLoader."
                )
        self.datasets = dict(sources)
        self.with_names = with_names
        self._names = tuple(self.datasets)
        self._lengths = tuple(len(source) for source in self.datasets.values())
        self._starts = np.cumsum([0, *self._lengths])
        self._gates = tuple(PassGate(source) for source in self.datasets.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sources."""
        return self._names

    @property
    def lengths(self) -> tuple[int, ...]:
        """Samples of each source."""
        return self._lengths

    def indices_of(
        self, source: int, positions: npt.NDArray[np.int64], number: int
    ) -> npt.NDArray[np.int64]:
        """Return the indices of samples of a source in a pass over it.

        Args:
            source: Number of the source.
            positions: Of the samples in the source, int64.
            number: Of the pass, from 0.
        """
        first = int(self._starts[source]) + (number + 1) * len(self)
        return positions + first

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int, /) -> Sample:
        [run] = self._runs([index])
        with self._reading(run):
            sample = self._dataset(run.source)[int(run.positions[0])]
        return (self._names[run.source], sample) if self.with_names else sample

    def set_epoch(self, epoch: int) -> None:
        """Tell the sources which epoch begins, if they want to know.

        Args:
            epoch: Number of the epoch, from 0.
        """
        for gate in self._gates:
            gate.set_epoch(epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), self.__getstate__()

    def _dataset(self, source: int) -> Any:
        return self.datasets[self._names[source]]

    def _runs(self, indices: Sequence[Any]) -> list["_Run"]:
        """Divide indices by source and pass.

        Raises:
            IndexError: If one is before the first sample, or is no integer.
        """
        length = len(self)
        found = as_positions(indices, length)
        if found is None:
            raise IndexError(f"Expected indices of samples, but got {indices!r}.")
        if found.min() < 0:
            raise IndexError(f"Index {found.min() - length} of a dataset of {length} samples.")
        passes, places = np.divmod(found, length)
        sources = np.searchsorted(self._starts, places, side="right") - 1
        keys = passes * len(self._names) + sources
        if (keys == keys[0]).all():
            distinct, inverse = keys[:1], np.zeros(len(keys), np.int64)
        else:
            distinct, inverse = np.unique(keys, return_inverse=True)
        runs = []
        for number, key in enumerate(distinct.tolist()):
            where = np.flatnonzero(inverse == number)
            pass_number, source = divmod(key, len(self._names))
            positions = places[where] - self._starts[source]
            runs.append(_Run(source, pass_number - 1, positions, where))
        return runs

    @user_block
    def _reading(self, run: "_Run") -> Iterator[None]:
        is_pass = run.number >= 0
        scope = current_draw_scope()
        if scope is not None:
            epoch = run.number if is_pass else scope.epoch
            scope = DrawScope(source_seed(scope.seed, run.source), epoch)
        gate = self._gates[run.source].entered(run.number) if is_pass else nullcontext()
        try:
            with gate, draw_scope(scope):
                yield
        except Exception as error:
            add_note(
                error, f"Raised by the source {self._names[run.source]!r} at {run.describe()}."
            )
            raise

    def _read_many(self, indices: Sequence[Any]) -> list[Sample]:
        samples: list[Sample] = [None] * len(indices)
        for run in self._runs(indices):
            source = self._dataset(run.source)
            positions = run.positions.tolist()
            read: Callable[[list[int]], list[Sample]] | None
            read = getattr(source, "__getitems__", None)
            with self._reading(run):
                found = [source[i] for i in positions] if read is None else read(positions)
            for where, sample in zip(run.where.tolist(), found, strict=True):
                samples[where] = (
                    (self._names[run.source], sample) if self.with_names else sample
                )
        return samples


class _Run(NamedTuple):
    """What is read from one source in one pass."""

    source: int
    number: int
    """Of the pass, from 0; -1 for the epoch of the loader."""
    positions: npt.NDArray[np.int64]
    """In the source."""
    where: npt.NDArray[np.int64]
    """Places of the samples in the batch."""

    def describe(self) -> str:
        positions = self.positions.tolist()
        where = f"its index {positions[0]}" if len(positions) == 1 else f"indices {positions}"
        return where if self.number < 0 else f"{where}, in pass {self.number} over it"


class _ListedMix(MixedDataset):
    """A mix in which some source reads many samples in one call."""

    def __getitems__(self, indices: Sequence[Any]) -> list[Sample]:
        return self._read_many(indices)


class _BatchedMix(MixedDataset):
    """A mix of which all sources make whole batches."""

    has_independent_rows = False
    """Batches of different sources have no more in common than that: no call makes several."""

    def __init__(self, sources: Mapping[str, Any], *, with_names: bool = False) -> None:
        super().__init__(sources, with_names=with_names)
        self._batched = _adapt(self.datasets)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_batched"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._batched = _adapt(self.datasets)

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        """Return the samples at `indices` as one batch; see `BatchedDataset.get_batch`.

        Args:
            indices: As for single samples.
        """
        batches, places = [], []
        runs = self._runs(indices)
        for run in runs:
            with self._reading(run):
                batches.append(self._batched[run.source].get_batch(IndexList(run.positions)))
            places.append(torch.from_numpy(run.where))
        try:
            batch = batches[0] if len(batches) == 1 else merge_batches(batches, places)
        except UnlikeBatchesError:
            return default_collate(self._read_many(indices))
        return [self._names_of(runs, len(indices)), batch] if self.with_names else batch

    def _names_of(self, runs: Sequence[_Run], length: int) -> tuple[str, ...]:
        names = [self._names[runs[0].source]] * length
        for run in runs[1:]:
            for where in run.where.tolist():
                names[where] = self._names[run.source]
        return tuple(names)


def _blank(cls: type[MixedDataset]) -> MixedDataset:
    return object.__new__(cls)


def _adapt(datasets: Mapping[str, Any]) -> list[BatchedDataset]:
    adapted = (as_batched(dataset) for dataset in datasets.values())
    return [batched for batched in adapted if batched is not None]


@lru_cache(maxsize=256)
def source_seed(seed: int, source: int) -> int:
    """Return the seed of the random draws of a source.

    Args:
        seed: Of the mixture.
        source: Number of the source.
    """
    return derive_seed(seed, _SOURCE, source)
