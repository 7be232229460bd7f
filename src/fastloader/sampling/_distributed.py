"""The share of one rank in any order."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch.utils.data
from torch.utils.data import SequentialSampler

from fastloader.errors import SettingsError
from fastloader.machine._ranks import read_ranks
from fastloader.sampling._chain import samplers_within
from fastloader.sampling._epoch_sampler import (
    EpochSampler,
    Indices,
    Order,
    has_chunks,
    iter_chunks,
    whole_number,
)
from fastloader.sampling._foreign import as_epoch_sampler
from fastloader.sampling._shuffled import OrderedSampler, ShuffledSampler

__all__ = ["DistributedSampler", "Uneven", "reseed_order", "whole_order"]

Uneven: TypeAlias = Literal["pad", "drop", "keep"]
"""What becomes of samples that cannot be shared equally."""


class DistributedSampler(EpochSampler, torch.utils.data.DistributedSampler[int]):
    """Every world-th sample of an order, another share on each rank.

    Takes what torch's `DistributedSampler` takes, and is one, so that frameworks know that
    nothing is left to share. Any order can be shared: all ranks know the whole of it, from
    seed and epoch, and each takes the samples number rank, rank + world size, and so on.

    Args:
        dataset: The dataset, for its length.
        num_replicas: How many share the order; None takes the process group's number of ranks,
            or the launcher's.
        rank: Which of them this one is, from 0; None takes this process's.
        shuffle: Whether the order is that of a `ShuffledSampler`, or from first to last.
        seed: Of the order; the same on all ranks.
        drop_last: The same as ``uneven="drop"``.
        sampler: The order, instead of `shuffle` and `seed`: a sampler of this package, one of
            torch's, whose kind of draws is then made from `seed`, or any other one with a
            length that gives the same integers on all ranks.
        uneven: What to do where the number of samples is not a multiple of `num_replicas`:
            ``"pad"`` gives each rank the same number by giving the first ones twice,
            ``"drop"`` by leaving the last ones out, and ``"keep"`` gives each sample once, one
            more to some ranks than to others.

    Raises:
        SettingsError: If an option cannot work.

    Examples:
        >>> shares = [
        ...     DistributedSampler(range(5), 2, rank, shuffle=False, uneven="keep")
        ...     for rank in range(2)
        ... ]
        >>> [list(share) for share in shares]
        [[0, 2, 4], [1, 3]]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        sampler: Iterable[int] | Sequence[int] | None = None,
        uneven: Uneven = "pad",
    ) -> None:
        ranks = read_ranks()
        num_replicas = whole_number(
            "num_replicas", ranks.world_size if num_replicas is None else num_replicas
        )
        rank = whole_number("rank", ranks.rank if rank is None else rank)
        if num_replicas < 1:
            raise SettingsError(f"num_replicas must be 1 or more, but got {num_replicas}.")
        if not 0 <= rank < num_replicas:
            raise SettingsError(
                f"rank must be from 0 to {num_replicas - 1}, the number of the last of "
                f"num_replicas={num_replicas}, but got {rank}."
            )
        if uneven not in get_args(Uneven):
            raise SettingsError(
                f"uneven should be 'pad', 'drop' or 'keep', but got {uneven!r}."
            )
        if sampler is not None:
            self.sampler = as_epoch_sampler(sampler, seed)
            seed = self.sampler.seed
        else:
            self.sampler = (
                ShuffledSampler(dataset, seed) if shuffle else OrderedSampler(dataset)
            )
        # Not torch's __init__: it would fix lengths that depend on `uneven` and `start_at`.
        EpochSampler.__init__(self, seed)
        self.dataset = dataset  # type: ignore[assignment]  # torch wants a Dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = self.sampler.shuffle
        self.uneven: Uneven = "drop" if drop_last else uneven
        self.drop_last = self.uneven == "drop"
        self._num_done = 0
        self._is_begun = False

    @property
    def num_samples(self) -> int:  # type: ignore[override]  # an attribute in torch
        """Samples of this rank in the coming epoch, or in the one that runs."""
        return self._share().length

    @property
    def total_size(self) -> int:  # type: ignore[override]  # an attribute in torch
        """Samples of all ranks together, those that are given twice included."""
        if self.uneven == "keep":
            return self._share().num_left
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass.

        Args:
            epoch: Number of the epoch, from 0; the same on all ranks.
        """
        if self._is_begun:
            self._num_done, self._is_begun = 0, False
        self.epoch = epoch
        self.sampler.set_epoch(epoch)

    def start_at(self, num_samples: int) -> None:
        """Leave out the start of the order in the next pass, and in that one alone.

        What is left is shared among the ranks that there are now, so that a run can be resumed
        on another number of them.

        Args:
            num_samples: How many samples all ranks together have read of it.

        Raises:
            SettingsError: If the number is negative.
        """
        if num_samples < 0:
            raise SettingsError(f"num_samples must be 0 or more, but got {num_samples}.")
        self._num_done, self._is_begun = num_samples, False

    def draw(self, epoch: int) -> Order:
        """Return this rank's share of a whole epoch; see `EpochSampler.draw`."""
        return self._share(num_done=0).of(self.sampler.draw(epoch))

    def chunks(self, first: int = 0) -> Iterator[Indices]:
        """Return this rank's share as arrays; see `EpochSampler.chunks`."""
        if self._is_begun:
            self._num_done = 0
        self._is_begun = True
        share, sampler = self._share(), self.sampler
        return iter_chunks(
            lambda epoch: share.of(sampler.draw(epoch)), self.epoch, first, share.length
        )

    def _share(self, num_done: int | None = None) -> "_Share":
        num_done = self._num_done if num_done is None else num_done
        num_left = max(0, len(self.sampler) - num_done)
        return _Share(self.rank, self.num_replicas, num_done, num_left, self.uneven)


def whole_order(sampler: object) -> list[int] | None:
    """Return seed and length of the order that all ranks share, or that one has for itself.

    Orders with the same ones are the same, if their samplers were made alike.

    Args:
        sampler: Any sampler.

    Returns:
        None if the order depends on anything else.
    """
    if isinstance(sampler, DistributedSampler):
        sampler = sampler.sampler
    if isinstance(sampler, EpochSampler) and has_chunks(sampler):
        return [sampler.seed, len(sampler)]
    return [0, len(sampler)] if type(sampler) is SequentialSampler else None


def reseed_order(sampler: object, seed: int) -> None:
    """Let an order that `whole_order` knows be that of another seed from its next epoch on.

    Args:
        sampler: Any sampler; those of other kinds are left alone.
        seed: The first number from `whole_order`.
    """
    for within in samplers_within(sampler):
        if isinstance(within, EpochSampler):
            within.seed = seed


class _Share(NamedTuple):
    """Which places of an order belong to one rank."""

    rank: int
    num_replicas: int
    num_done: int
    """Samples at the start of the order that are nobody's."""
    num_left: int
    uneven: Uneven

    @property
    def length(self) -> int:
        whole, rest = divmod(self.num_left, self.num_replicas)
        if self.uneven == "drop":
            return whole
        more = rest > (self.rank if self.uneven == "keep" else 0)
        return whole + more

    def of(self, order: Order) -> Order:
        """Return the rank's part of `order`."""

        def share(places: Indices) -> Indices:
            # Beyond the end, where others have one more, come the first ones again.
            shared = (places * self.num_replicas + self.rank) % self.num_left
            return order(shared + self.num_done)

        return share
