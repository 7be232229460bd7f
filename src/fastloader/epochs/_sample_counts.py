"""How many samples batches have, and where they come from: for the loader's statistics."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset, default_collate

from fastloader.epochs._position import EpochPosition, MapPosition
from fastloader.stats import CountsSources, SourceCount, count_samples, subtract_counts
from fastloader.typing import Batch

__all__ = ["regular_batch_size", "sample_counter", "source_counter"]


def source_counter(
    loader: Any, position: EpochPosition
) -> Callable[[], Mapping[str, SourceCount]]:
    """Return what tells of a mixture what each source has given in this pass.

    Args:
        loader: The loader, for its options as they are now.
        position: In the epoch that begins.
    """
    sampler = loader.batch_sampler
    if (
        type(sampler) is BatchSampler  # nearly always, and quicker to tell than the rest
        or not isinstance(sampler, CountsSources)
        or not isinstance(position, MapPosition)
    ):
        return dict

    def count() -> dict[str, SourceCount]:
        return sampler.count_sources(position.sampler_state, position.epoch)

    before = count()  # in a resumed epoch
    return lambda: subtract_counts(count(), before)


def regular_batch_size(loader: Any) -> int | None:
    """Return how many samples all batches but the last have; None where others may differ, too.

    Args:
        loader: The loader, for its options as they are now.
    """
    sampler = loader.batch_sampler
    if type(sampler) is not BatchSampler or _may_lack_samples(loader):
        return None
    return sampler.batch_size if loader.in_order or loader.num_workers == 0 else None


def sample_counter(loader: Any) -> Callable[[Any, Batch], int]:
    """Return what tells how many samples a batch has, from what was asked for and what came.

    Args:
        loader: The loader, for its options as they are now.
    """
    if loader.batch_sampler is None:
        return lambda _indices, _batch: 1
    if _may_lack_samples(loader):
        return lambda indices, batch: count_samples(batch, len(indices))
    return lambda indices, _batch: len(indices)


def _may_lack_samples(loader: Any) -> bool:
    """Return whether batches may have fewer samples than were asked for, and show how many."""
    if isinstance(loader.dataset, IterableDataset):
        return True
    return loader.on_error == "skip" and loader.collate_fn is default_collate
