"""From what the caller gave to the sampler of a loader: factory, epoch length, share."""

import logging
import sys
import warnings
from collections.abc import Iterable
from numbers import Integral
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from fastloader.errors import EmptyEpochError, SettingsError
from fastloader.inspection._lengths import length_of
from fastloader.machine._ranks import Ranks, read_ranks
from fastloader.sampling._chain import samplers_within
from fastloader.sampling._distributed import DistributedSampler, Uneven
from fastloader.sampling._epoch_length import EpochLengthSampler
from fastloader.sampling._epoch_sampler import EpochSampler
from fastloader.sampling._foreign import as_epoch_sampler, translate
from fastloader.sampling._seeded import SeededSampler
from fastloader.sampling._shuffled import OrderedSampler, ShuffledSampler

__all__ = [
    "Distributed",
    "GivenOrder",
    "is_accelerate_active",
    "is_stream_shared",
    "resolve_order",
]

Distributed: TypeAlias = bool | Literal["auto"]
"""Whether a loader shares its samples with those on other ranks."""

logger = logging.getLogger("fastloader")


class GivenOrder(NamedTuple):
    """The options of a loader that decide its order."""

    dataset: Any
    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    generator: torch.Generator | None
    seed: int | None
    distributed: Distributed
    samples_per_epoch: int | None
    batches_per_epoch: int | None


def resolve_order(given: GivenOrder) -> GivenOrder:
    """Call factories, set the length of an epoch, and take this rank's share.

    Made anew from its own result it stays the same: frameworks do so.

    Returns:
        The same with other `sampler`, `batch_sampler` and `shuffle`, as torch takes them.

    Raises:
        SettingsError: If the options cannot work together.
        EmptyEpochError: If an empty dataset is to be shuffled.
        ValueError: If samples are to be shared where Accelerate is active.
    """
    if given.distributed not in (False, True, "auto"):
        raise SettingsError(
            f"distributed should be False, True or 'auto', but got {given.distributed!r}."
        )
    if isinstance(given.shuffle, str):
        raise SettingsError(
            f"shuffle should be True, False or None, but got {given.shuffle!r}."
        )
    has_sampler = given.sampler is not None or given.batch_sampler is not None
    # For iterable data torch refuses any.
    if has_sampler and not isinstance(given.dataset, IterableDataset):
        given = given._replace(
            sampler=_made("sampler", given.sampler, given.dataset),
            batch_sampler=_made("batch_sampler", given.batch_sampler, given.dataset),
        )
        _check_lists(given.batch_sampler)
        _warn_of_repeats(given.batch_sampler if given.sampler is None else given.sampler)
    if _is_shuffled_by_loader(given):
        _check_not_empty(given.dataset)
    ranks = _ranks_to_share(given) if given.distributed else None
    if given.samples_per_epoch is not None or given.batches_per_epoch is not None:
        given = _with_length(given, 1 if ranks is None else ranks.world_size)
    if ranks is not None:
        return _with_share(given, ranks)
    if given.seed is not None and _is_shuffled_by_loader(given):
        return given._replace(sampler=SeededSampler(given.dataset, given.seed), shuffle=None)
    return given


def _made(name: str, sampler: Any, dataset: Any) -> Any:
    """Return a sampler, or what a function makes of the dataset.

    Raises:
        SettingsError: If that gives no indices.
    """
    is_factory = callable(sampler) and not isinstance(sampler, Iterable)
    made = sampler(dataset) if is_factory else sampler
    is_iterable = isinstance(made, Iterable) or hasattr(type(made), "__getitem__")
    if made is not None and (isinstance(made, str) or not is_iterable):
        raise SettingsError(
            f"{name} should be an iterable, such as a torch.utils.data.Sampler or a list, or a "
            f"function that makes one of the dataset, but got {made!r}."
        )
    return made


def _check_lists(batch_sampler: Any) -> None:
    """Refuse indices of samples where lists of them are expected.

    Raises:
        SettingsError: If the first of a sequence is a number.
    """
    is_flat = isinstance(batch_sampler, list | tuple | range) and batch_sampler
    if is_flat and isinstance(batch_sampler[0], Integral):
        raise SettingsError(
            f"batch_sampler should give a list of indices for each batch, but gives "
            f"{batch_sampler[0]!r} first: give single indices as sampler, with batch_size."
        )


def _warn_of_repeats(sampler: Any) -> None:
    """Warn of a sampler of torch's that goes through the data in order and gives some samples twice."""
    for within in samplers_within(sampler):
        is_torchs = isinstance(within, torch.utils.data.DistributedSampler)
        if not is_torchs or isinstance(within, DistributedSampler) or within.shuffle:
            continue
        num_samples = len(within.dataset)
        if within.rank == 0 and within.total_size > num_samples:  # one of the ranks is enough
            warnings.warn(
                f"{type(within).__name__} with shuffle=False gives {within.total_size - num_samples} of "
                f"{num_samples} samples twice, so that each of {within.num_replicas} ranks has equally "
                "many: an evaluation counts them twice. To give each once leave the sampler out and "
                "set distributed=True, or take fastloader.sampling.DistributedSampler with "
                "uneven='keep'.",
                stacklevel=2,
            )


def _is_shuffled_by_loader(given: GivenOrder) -> bool:
    if not given.shuffle or isinstance(given.dataset, IterableDataset):
        return False
    return given.sampler is None and given.batch_sampler is None


def _check_not_empty(dataset: Any) -> None:
    if length_of(dataset) == 0:
        raise EmptyEpochError(
            "The dataset is empty (length 0), so there is nothing to shuffle: look at where "
            "its samples should come from."
        )


def _ranks_to_share(given: GivenOrder) -> Ranks | None:
    """Return the ranks that the loader has to share its samples with, if any.

    Raises:
        SettingsError: If it has to by ``distributed=True`` and cannot.
        ValueError: If it has to where Accelerate is active.
    """
    ranks = read_ranks()
    if ranks.world_size == 1:
        logger.info("This is the only rank (%s): there is nothing to share.", ranks.source)
        return None
    there = _find_share(given)
    if there is not None:
        logger.info(
            "Rank %d of %d: the samples are shared out already, by %s; this loader leaves it at "
            "that.", ranks.rank, ranks.world_size, there,
        )  # fmt: skip
        return None
    obstacle = _ACCELERATE if is_accelerate_active() else _find_obstacle(given)
    if obstacle is None:
        return ranks
    if given.distributed is True:
        # No option is wrong beside Accelerate, but the place: there it is a plain ValueError.
        kind = ValueError if obstacle is _ACCELERATE else SettingsError
        raise kind(f"distributed=True cannot share these samples: {obstacle}")
    logger.info(
        "Rank %d of %d: this loader does not share its samples: %s",
        ranks.rank, ranks.world_size, obstacle,
    )  # fmt: skip
    return None


def _find_share(given: GivenOrder) -> str | None:
    """Return what shares the samples among ranks already."""
    if isinstance(given.dataset, IterableDataset) and is_stream_shared(given.dataset):
        return f"{type(given.dataset).__name__}, which reads its part of them"
    for sampler in (given.sampler, given.batch_sampler):
        for within in samplers_within(sampler):
            if isinstance(within, torch.utils.data.DistributedSampler):
                return f"a {type(within).__name__} that was given"
    return None


def _find_obstacle(given: GivenOrder) -> str | None:
    """Return why the samples cannot be shared out, and what to do."""
    if isinstance(given.dataset, IterableDataset):
        return (
            f"{type(given.dataset).__name__} is iterable and decides itself what it yields. "
            "Let it declare as many shards as there are ranks (num_shards and shard), or wrap it "
            "in fastloader.datasets.ShardedIterable."
        )
    if given.batch_sampler is not None:
        return (
            "batch_sampler makes its own batches. Give its samples as sampler, with batch_size, "
            "or let it make other batches on each rank."
        )
    if given.sampler is not None and translate(given.sampler, 0) is None:
        return (
            f"{type(given.sampler).__name__} may draw another order on each rank. If it does "
            "not, give sampler=fastloader.sampling.DistributedSampler(dataset, "
            "sampler=your_sampler); else use one of fastloader.sampling."
        )
    return None


_ACCELERATE = (
    "Accelerate shares out every loader that it prepares. Leave distributed out, or set it to "
    "'auto'."
)


def is_stream_shared(dataset: Any) -> bool:
    """Tell whether an iterable dataset reads one rank's part."""
    if getattr(dataset, "num_replicas", 1) > 1:
        return True
    # What split_dataset_by_node of Hugging Face leaves behind.
    return getattr(dataset, "_distributed", None) is not None


def is_accelerate_active() -> bool:
    """Tell whether there is an Accelerator in this process."""
    # It takes a loader's sampler and shards again, whatever that is; see the guide.
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(getattr(state.PartialState, "_shared_state", None))


def _with_length(given: GivenOrder, num_ranks: int) -> GivenOrder:
    """Cut the order into epochs of the length that was asked for.

    Raises:
        SettingsError: If that is not possible.
    """
    number = _samples_per_epoch(given, num_ranks)
    samplers = list(samplers_within(given.sampler))
    if any(type(within) is EpochLengthSampler for within in samplers):
        return given
    if isinstance(given.dataset, IterableDataset) or given.batch_sampler is not None:
        raise SettingsError(
            "samples_per_epoch and batches_per_epoch need a map-style dataset and no "
            "batch_sampler: an iterable dataset and a batch sampler decide themselves when an "
            "epoch ends."
        )
    if any(isinstance(w, torch.utils.data.DistributedSampler) for w in samplers):
        raise SettingsError(
            "samples_per_epoch and batches_per_epoch come before sharing: leave out the "
            "DistributedSampler, and set distributed=True."
        )
    if given.sampler is not None and given.shuffle:
        return given  # torch says what is wrong
    sampler = EpochLengthSampler(_whole_order(given, num_ranks), number)
    return given._replace(sampler=sampler, shuffle=None)


def _samples_per_epoch(given: GivenOrder, num_ranks: int) -> int:
    """Return how many samples an epoch has, of all ranks together.

    Raises:
        SettingsError: If the options that say so make no sense.
    """
    for name in ("samples_per_epoch", "batches_per_epoch"):
        value = getattr(given, name)
        if value is None:
            continue
        is_count = isinstance(value, Integral) and not isinstance(value, bool)
        if not (is_count and value > 0):
            raise SettingsError(
                f"{name} must be an integer of 1 or more, or None for all samples, but got "
                f"{value!r}."
            )
    if given.batches_per_epoch is None:
        return given.samples_per_epoch or 0  # one of them is given
    if given.samples_per_epoch is not None:
        raise SettingsError(
            "samples_per_epoch and batches_per_epoch both decide the length of an epoch: give "
            "one of them."
        )
    return given.batches_per_epoch * (given.batch_size or 1) * num_ranks


def _whole_order(given: GivenOrder, num_ranks: int) -> EpochSampler:
    """Return the order of all ranks together."""
    seed = _order_seed(given, num_ranks)
    if given.sampler is not None:
        return as_epoch_sampler(given.sampler, seed)
    return (
        ShuffledSampler(given.dataset, seed) if given.shuffle else OrderedSampler(given.dataset)
    )


def _order_seed(given: GivenOrder, num_ranks: int) -> int:
    if given.seed is not None:
        return given.seed
    if num_ranks > 1:
        return 0  # generators may stand elsewhere on another rank
    generator = given.generator
    return torch.initial_seed() if generator is None else generator.initial_seed()


def _with_share(given: GivenOrder, ranks: Ranks) -> GivenOrder:
    """Give the loader the share of this rank."""
    if given.sampler is not None and given.shuffle:
        return given  # torch says what is wrong
    order = _whole_order(given, ranks.world_size)
    # What comes in order is evaluated, each sample once, and nothing waits for equal steps.
    uneven: Uneven = "drop" if given.drop_last else "pad" if order.shuffle else "keep"
    sampler = DistributedSampler(
        given.dataset,
        ranks.world_size,
        ranks.rank,
        sampler=order,
        uneven=uneven,
    )
    logger.info(
        "Rank %d of %d (%s) reads %d of %d samples in an epoch (%s), shared out by this loader.",
        ranks.rank, ranks.world_size, ranks.source, len(sampler), len(order), _UNEVEN[uneven],
    )  # fmt: skip
    return given._replace(sampler=sampler, shuffle=None)


_UNEVEN = {
    "pad": "some twice where they cannot be shared equally",
    "drop": "the last ones left out where they cannot be shared equally",
    "keep": "each sample on one rank",
}
