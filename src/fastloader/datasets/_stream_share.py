"""The shards of an iterable dataset that a loader takes for its rank."""

from typing import Any

from torch.utils.data import IterableDataset

from fastloader.datasets import ShardedIterable
from fastloader.datasets._sharded import count_shards
from fastloader.machine._ranks import read_ranks
from fastloader.sampling._given_order import (
    is_accelerate_active,
    is_stream_shared,
)

__all__ = ["share_stream"]


def share_stream(dataset: Any) -> Any:
    """Return this rank's shards of an iterable dataset, where the loader has to share it.

    Args:
        dataset: Any dataset; all but iterable ones that declare enough shards and are not shared
            out already are returned as they are.
    """
    if not isinstance(dataset, IterableDataset):
        return dataset
    ranks = read_ranks()
    if ranks.world_size == 1 or is_accelerate_active() or is_stream_shared(dataset):
        return dataset
    if count_shards(dataset) < ranks.world_size:
        return dataset
    return ShardedIterable(dataset, num_replicas=ranks.world_size, rank=ranks.rank)
