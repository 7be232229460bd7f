"""The order of one epoch and the seed of its draws, as torch would draw both."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from fastloader._seeding import derive_seed
from fastloader.errors import EmptyEpochError
from fastloader.sampling._base_seed import draw_seed, draws_on_cpu, peek_seed
from fastloader.sampling._compact import compact_sampler

__all__ = ["EpochOrder", "begin_epoch", "check_any_batch", "seeded_sampler"]

_ORDER = 1
"""Tells the seed of the order from other seeds made of the same number."""


class EpochOrder(NamedTuple):
    """What an epoch reads, in which order."""

    base_seed: int
    """Of the random draws of its samples; the same on every rank that draws alike."""
    indices: Iterator[Any]
    """Lists of indices, one for each batch; single indices without batches."""


def begin_epoch(
    sampler: Iterable[Any],
    batch_sampler: Iterable[Any] | None,
    *,
    is_iterable: bool,
    generator: torch.Generator | None,
    seed: int | None,
    epoch: int,
) -> EpochOrder:
    """Draw the seed of an epoch and start its order.

    Where torch's loader draws an order, the same numbers are drawn from the same generators at
    the same moments: the order is torch's. Where it does not, no generator is moved.

    Args:
        sampler: The loader's.
        batch_sampler: The loader's; None without batches.
        is_iterable: Whether the dataset decides its order itself.
        generator: The loader's.
        seed: Of the loader, if it has one: then no generator but our own is used.
        epoch: Number of the epoch, from 0.
    """
    read = sampler if batch_sampler is None else batch_sampler
    within = _sampler_within(sampler, batch_sampler)
    order_generator = None
    with draws_on_cpu():
        if seed is not None:
            base_seed = seed
            if _is_seeded(within, seed):
                order_generator = torch.Generator().manual_seed(
                    derive_seed(seed, _ORDER, epoch)
                )
        elif generator is not None or (not is_iterable and _draws(within, batch_sampler)):
            base_seed = draw_seed(generator) % 2**64
        else:
            base_seed = peek_seed(epoch)
        return EpochOrder(base_seed, _on_cpu(iter(compact_sampler(read, order_generator))))


def seeded_sampler(dataset: Any, seed: int) -> RandomSampler:
    """Return a sampler that shuffles by a seed and the epoch alone, in `begin_epoch`."""
    generator = torch.Generator().manual_seed(derive_seed(seed, _ORDER))
    return RandomSampler(dataset, generator=generator)


def check_any_batch(batch_sampler: Iterable[Any] | None) -> None:
    """Refuse an epoch without batches, which would pass unnoticed.

    Args:
        batch_sampler: The loader's.

    Raises:
        EmptyEpochError: If `drop_last` leaves no batch.
    """
    if type(batch_sampler) is not BatchSampler or not batch_sampler.drop_last:
        return
    try:
        num_samples = len(batch_sampler.sampler)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return
    if 0 < num_samples < batch_sampler.batch_size:
        raise EmptyEpochError(
            f"drop_last=True leaves no batch: {num_samples} samples do not fill one of "
            f"batch_size={batch_sampler.batch_size}. Lower batch_size, or set drop_last=False."
        )


def _sampler_within(sampler: Iterable[Any], batch_sampler: Iterable[Any] | None) -> Any:
    """Return what decides the order, below torch's own batches."""
    return batch_sampler.sampler if type(batch_sampler) is BatchSampler else sampler


def _draws(within: Any, batch_sampler: Iterable[Any] | None) -> bool:
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return True
    return type(within) is not SequentialSampler


def _is_seeded(sampler: Any, seed: int) -> bool:
    """Tell whether the sampler is one that a loader with this seed made.

    Frameworks that make a loader anew give it the first one's sampler.
    """
    if type(sampler) is not RandomSampler or sampler.generator is None:
        return False
    return bool(sampler.generator.initial_seed() == derive_seed(seed, _ORDER))


def _on_cpu(indices: Iterator[Any]) -> Iterator[Any]:
    """Let samplers draw on the CPU, where their generators are, whatever the default device."""
    if torch.get_default_device().type == "cpu":
        return indices
    return _drawn_on_cpu(indices)


def _drawn_on_cpu(indices: Iterator[Any]) -> Iterator[Any]:
    while True:
        with draws_on_cpu():
            try:
                index = next(indices)
            except StopIteration:
                return
        yield index
