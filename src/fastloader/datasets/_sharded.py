"""An iterable dataset of which each rank, and each of its workers, reads another part."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch.utils.data
from torch.utils.data import IterableDataset

from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.errors import SettingsError
from fastloader.machine._ranks import read_ranks
from fastloader.typing import Batch, Sample

__all__ = ["ShardedIterable", "count_shards"]


class ShardedIterable(DatasetWrapper):
    """The part of an iterable dataset that belongs to this rank and worker.

    A dataset that declares shards, as those of Hugging Face do (`num_shards` and
    ``shard(num_shards=, index=)``), gives each rank whole shards, if it has enough of them, and
    divides those among the workers itself. Of any other one, each worker of each rank reads all
    samples and keeps every n-th: nothing is lost or doubled, but reading is not shared.
    Such a dataset must yield the same samples in the same order in every process.

    Args:
        dataset: Any iterable dataset.
        num_replicas: How many share it; None takes the process group's number of ranks, or the
            launcher's.
        rank: Which of them this one is, from 0; None takes this process's.
        splits_workers: Whether a dataset without shards divides its samples among workers by
            `torch.utils.data.get_worker_info`, so that only ranks are left to divide by.
        uneven: ``"keep"`` gives every sample to somebody; ``"drop"`` leaves out the last ones,
            of which there are too few for all, so that all ranks have the same number. It is
            for datasets whose samples are counted off, not whole shards.

    Raises:
        SettingsError: If the dataset is not iterable, or an option cannot work.

    Examples:
        >>> class Letters(IterableDataset):
        ...     def __iter__(self):
        ...         return iter("abcde")
        >>> [list(ShardedIterable(Letters(), num_replicas=2, rank=rank)) for rank in range(2)]
        [['a', 'c', 'e'], ['b', 'd']]
    """

    _resumed_at = 0

    def __init__(
        self,
        dataset: Any,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        splits_workers: bool = False,
        uneven: Literal["keep", "drop"] = "keep",
    ) -> None:
        ranks = read_ranks()
        num_replicas = ranks.world_size if num_replicas is None else num_replicas
        rank = ranks.rank if rank is None else rank
        _check(dataset, num_replicas, rank, uneven)
        whole_shards = count_shards(dataset) >= num_replicas and uneven == "keep"
        super().__init__(
            dataset.shard(num_shards=num_replicas, index=rank) if whole_shards else dataset
        )
        self.num_replicas = num_replicas
        self.rank = rank
        self.splits_workers = splits_workers
        self.uneven = uneven
        self._counts_off = not whole_shards
        self._divides = splits_workers or count_shards(dataset) > 0

    def transform_sample(self, sample: Sample, index: Any) -> Sample:  # noqa: ARG002
        """Return the sample as it is."""
        return sample

    def transform_batch(self, batch: Batch, indices: Sequence[Any]) -> Batch:  # noqa: ARG002
        """Return the batch as it is."""
        return batch

    def __len__(self) -> int:
        total = len(self.dataset)
        if not self._counts_off:
            return total
        rest = self.rank if self.uneven == "keep" else self.num_replicas - 1
        return max(0, -(-(total - rest) // self.num_replicas))

    def __iter__(self) -> Iterator[Sample]:
        # Of the kind that is iterable; it counts what is read, to be resumed there.
        first, samples = self._resumed_at, super().__iter__()  # type: ignore[misc]
        if not self._counts_off:
            yield from samples
            return
        number, count = self._place()
        held: list[Sample] = []
        for position, sample in enumerate(samples, first):
            if position % count == number:
                held.append(sample)
            if held and (self.uneven == "keep" or position % count == count - 1):
                yield held.pop()

    def _place(self) -> tuple[int, int]:
        """Return the number of this worker of all that count off together, and their number."""
        info = torch.utils.data.get_worker_info()
        if info is None or self._divides:
            return self.rank, self.num_replicas
        return (
            self.rank * info.num_workers + info.id,
            self.num_replicas * info.num_workers,
        )


def _check(dataset: Any, num_replicas: int, rank: int, uneven: str) -> None:
    """Refuse what cannot work.

    Raises:
        SettingsError: If so.
    """
    if not isinstance(dataset, IterableDataset):
        raise SettingsError(
            f"{type(dataset).__name__} is not iterable: share out a map-style dataset by "
            "FastLoader(..., distributed=True) or fastloader.sampling.DistributedSampler."
        )
    if not 0 <= rank < num_replicas:
        raise SettingsError(
            f"rank must be from 0 to {num_replicas - 1}, the number of the last of "
            f"num_replicas={num_replicas}, but got {rank}."
        )
    if uneven not in {"keep", "drop"}:
        raise SettingsError(f"uneven should be 'keep' or 'drop', but got {uneven!r}.")


def count_shards(dataset: Any) -> int:
    """Return how many shards a dataset can give away; 0 if it declares none."""
    if not callable(getattr(dataset, "shard", None)):
        return 0
    number = getattr(dataset, "num_shards", None)
    if not isinstance(number, int):
        number = getattr(dataset, "n_shards", 0)
    return number if isinstance(number, int) else 0
