"""What the next epoch will read, as far as that can be known before it begins."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeAlias

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastloader._torch_internals import draws_on_cpu_by_default
from fastloader.sampling._base_seed import draw_seed, peek_seed
from fastloader.sampling._compact import compact_sampler
from fastloader.sampling._drawn import DrawnBatches
from fastloader.sampling._epoch_order import order_decider, own_generators
from fastloader.sampling._epoch_sampler import EpochSampler, has_chunks

__all__ = [
    "Foretell",
    "foretell_epoch",
    "foretell_generators",
    "may_be_drawn_early",
    "may_be_foretold",
]

Foretell: TypeAlias = Callable[[], tuple[int, DrawnBatches] | None]
"""Returns base seed and batches of a coming epoch, drawn without a trace; None if they cannot be known."""

_SEQUENCES = {list, tuple, range}

_DRAWN_AT_ONCE = {DistributedSampler, SubsetRandomSampler, WeightedRandomSampler}
"""Samplers of torch's that draw all their indices before they give the first."""


def foretell_epoch(
    sampler: Iterable[Any],
    batch_sampler: Iterable[Any] | None,
    *,
    generator: torch.Generator | None,
    seed: int | None,
    epoch: int,
) -> tuple[int, DrawnBatches] | None:
    """Return what `begin_epoch` would draw now for map-style data, without a trace.

    Nothing is drawn from the generators themselves: it comes out otherwise if they move before the
    epoch begins, or if somebody changes a sampler.

    Args:
        sampler: As for `begin_epoch`.
        batch_sampler: As for `begin_epoch`.
        generator: As for `begin_epoch`.
        seed: As for `begin_epoch`.
        epoch: As for `begin_epoch`.

    Returns:
        Base seed and batches; None where the order is not decided by samplers that are known to the last detail.
    """
    if not may_be_foretold(sampler, batch_sampler):
        return None
    decider = order_decider(sampler, batch_sampler)
    twins = _twins_of(decider, generator)
    base_seed, own = _foretell(decider, twins, generator, seed, epoch)
    twin = copy.copy(decider)
    if has_chunks(decider):
        twin.epoch = epoch
    elif own is not None:
        twin.generator = own
    read = twin
    if isinstance(batch_sampler, BatchSampler):
        read = BatchSampler(twin, batch_sampler.batch_size, batch_sampler.drop_last)
    return base_seed, DrawnBatches(iter(compact_sampler(read)))


def may_be_foretold(sampler: Iterable[Any], batch_sampler: Iterable[Any] | None) -> bool:
    """Return whether samplers that are known to the last detail decide the order.

    Args:
        sampler: As for `begin_epoch`.
        batch_sampler: As for `begin_epoch`.
    """
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return False
    return _is_known(order_decider(sampler, batch_sampler)) and draws_on_cpu_by_default()


def foretell_generators(
    sampler: RandomSampler, *, generator: torch.Generator | None, seed: int | None
) -> Iterator[torch.Generator] | None:
    """Return what a sampler would draw its permutations from in passes that began now, without a trace.

    Args:
        sampler: That decides the order.
        generator: The loader's.
        seed: The loader's.

    Returns:
        A copy of the sampler's generator for each pass, to be asked for when those of the pass before have
        been drawn; None if generators are not on the CPU.
    """
    if any(own.device.type != "cpu" for own in own_generators(sampler, generator).values()):
        return None
    twins = _twins_of(sampler, generator)  # as they are now
    passes = (_foretell(sampler, twins, generator, seed, 0) for _ in count())
    return (own for _, own in passes if own is not None)


def _twins_of(decider: Any, generator: torch.Generator | None) -> dict[int, torch.Generator]:
    """Return copies of the generators of a loader and its samplers by their identity, torch's by that of None."""
    world = torch.Generator()
    world.set_state(torch.get_rng_state())
    own = own_generators(decider, generator).values()
    return {id(None): world, **{id(one): one.clone_state() for one in own}}


def _foretell(
    decider: Any,
    twins: Mapping[int, torch.Generator],
    generator: torch.Generator | None,
    seed: int | None,
    epoch: int,
) -> tuple[int, torch.Generator | None]:
    """Return base seed and, for a `RandomSampler`, a copy of the generator that it will draw from.

    Args:
        decider: See `order_decider`.
        twins: From `_twins_of`; they move as their originals will.
        generator: The loader's.
        seed: The loader's.
        epoch: Number of the epoch.
    """
    if seed is not None:
        base_seed = seed
    elif generator is not None or type(decider) is not SequentialSampler:
        base_seed = draw_seed(twins[id(generator)]) % 2**64
    else:
        base_seed = peek_seed(epoch).derive()
    if type(decider) is not RandomSampler:
        return base_seed, None
    if decider.generator is None:
        return base_seed, torch.Generator().manual_seed(draw_seed(twins[id(None)]))
    return base_seed, twins[id(decider.generator)]


def may_be_drawn_early(sampler: Iterable[Any], batch_sampler: Iterable[Any] | None) -> bool:
    """Return whether nobody can tell that batches are drawn some time before they are wanted.

    A sampler of the caller's may go by what the training loop has found by then.

    Args:
        sampler: As for `begin_epoch`.
        batch_sampler: As for `begin_epoch`.
    """
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return type(batch_sampler) in _SEQUENCES
    decider = order_decider(sampler, batch_sampler)
    if type(decider) is RandomSampler and decider.replacement:
        return decider.generator is None  # else it goes on drawing from the caller's
    return type(decider) in _SEQUENCES | _DRAWN_AT_ONCE or _is_known(decider)


def _is_known(decider: Any) -> bool:
    if has_chunks(decider):
        return type(decider).set_epoch is EpochSampler.set_epoch
    return type(decider) in {RandomSampler, SequentialSampler}
