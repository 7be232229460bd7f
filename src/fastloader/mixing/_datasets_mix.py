"""A mixture of map-style datasets that one loader reads, with one set of workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from fastloader._loader import FastLoader
from fastloader.datasets import MixedDataset
from fastloader.mixing._batch_sampler import MixedBatchSampler
from fastloader.mixing._mixture import Mixture
from fastloader.stats import LoaderStats

__all__ = ["DatasetsMix"]

_TRANSFORMS = ("batch_transform", "device_transform")


class DatasetsMix:
    """Reads datasets by the turns of a mixture, through one `FastLoader`."""

    def __init__(
        self, dataset: MixedDataset, sampler: MixedBatchSampler, options: Mapping[str, Any]
    ) -> None:
        self._has_names = dataset.with_names
        if self._has_names:
            options = _beside_names(options)
        self._sampler = sampler
        self.loader: FastLoader[Any] = FastLoader(dataset, batch_sampler=sampler, **options)
        self.loaders = dict.fromkeys(dataset.names, self.loader)

    @property
    def stats(self) -> LoaderStats:
        """Of the one loader."""
        return self.loader.stats

    @property
    def mixture(self) -> Mixture:
        """The rules of the next epoch."""
        return self._sampler.mixture

    @mixture.setter
    def mixture(self, mixture: Mixture) -> None:
        self._sampler.mixture = mixture

    def begin(self) -> Iterator[Any]:
        """Begin the next epoch, or go on in one that was loaded."""
        batches = iter(self.loader)
        if self._has_names:
            return map(tuple if self._sampler.mix == "samples" else _name_once, batches)
        return batches

    def count_batches(self) -> float:
        """Return the batches of the next epoch, infinite if it never ends."""
        return self._sampler.count_batches()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass gives; those after it count on from there."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer is."""
        state = self.loader.state_dict()
        # The loader noted the state of the sampler with the last batch; since then the weights
        # of the next epoch may have been set.
        if state.get("sampler") is None:
            return state
        return {**state, "sampler": {**state["sampler"], **self._sampler.rules_state()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state."""
        self.loader.load_state_dict(state)


def _name_once(named: Sequence[Any]) -> tuple[str, Any]:
    names, batch = named
    return names[0], batch


def _beside_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose functions get the samples or the batch, without the names.

    Raises:
        SettingsError: If samples are to be skipped.
    """
    changed = dict(options)
    if changed.get("collate_fn") not in {None, default_collate}:
        changed["collate_fn"] = _NamedCollate(changed["collate_fn"])
    for name in _TRANSFORMS:
        if changed.get(name) is not None:
            changed[name] = _NamedTransform(changed[name])
    return changed


@dataclass(frozen=True)
class _NamedCollate:
    """Collates samples that come with names."""

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, samples: list[tuple[str, Any]]) -> list[Any]:
        names = tuple(name for name, _ in samples)
        return [names, self.collate_fn([sample for _, sample in samples])]


@dataclass(frozen=True)
class _NamedTransform:
    """Transforms a batch that comes with names."""

    transform: Callable[[Any], Any]

    def __call__(self, named: Sequence[Any]) -> list[Any]:
        names, batch = named
        return [names, self.transform(batch)]
