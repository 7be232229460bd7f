"""The order of one epoch and the seed of its draws, as torch would draw both."""

import pickle
from collections.abc import Iterable, Iterator, KeysView, ValuesView
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
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
from fastloader.errors import EmptyEpochError
from fastloader.inspection._lengths import length_if_known
from fastloader.sampling._base_seed import PeekedSeed, draw_seed, draws_on_cpu, peek_seed
from fastloader.sampling._compact import compact_sampler
from fastloader.sampling._drawn import DrawnBatches, pickled_state
from fastloader.sampling._epoch_sampler import has_chunks
from fastloader.sampling._permutations import Permutations
from fastloader.sampling._random_states import (
    RandomStates,
    capture_globals,
    capture_own,
    drawing_from,
    restore_own,
)
from fastloader.streams._nexts import nexts
from fastloader.typing import Stateful

__all__ = [
    "EpochOrder",
    "OrderPoint",
    "OrderStart",
    "begin_epoch",
    "check_any_batch",
    "order_decider",
    "own_generators",
]

_TORCH_SAMPLERS = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


@dataclass(frozen=True)
class OrderStart:
    """What the order of an epoch was drawn from, to draw it again."""

    seed: int | PeekedSeed
    """What `base_seed` is, or will be made of."""
    own: RandomStates
    """Of the generators of the loader and its samplers, before the order was drawn."""
    globals: RandomStates | None
    """Of the global generators, if the order depends on them."""

    @cached_property
    def base_seed(self) -> int:
        """Of the random draws of the samples; the same on every rank that draws alike."""
        return self.seed.derive() if isinstance(self.seed, PeekedSeed) else self.seed


@dataclass(frozen=True)
class OrderPoint:
    """A place in an order where an epoch is taken up again."""

    start: OrderStart | None
    """None draws an order anew."""
    num_batches: int
    """Batches before this place, all of them done: the number of the next one."""
    num_skipped: int
    """What is left out of the order to get there: samples where torch's `BatchSampler` makes
    the batches, else items of the sampler that is read."""
    done: frozenset[int]
    """Numbers of batches after this place that are done, where they came as they were ready."""
    sampler_state: Any
    """Of a sampler with a ``state_dict``, at this place: then nothing is left out."""
    is_over: bool = False
    """Whether this is behind the last batch, and that state of the sampler is for the next epoch."""


class EpochOrder(NamedTuple):
    """What an epoch reads, in which order."""

    start: OrderStart
    batches: DrawnBatches
    sampler_state: bytes | None
    """The pickled state of a sampler with a ``state_dict`` before it was asked."""


def begin_epoch(
    sampler: Iterable[Any],
    batch_sampler: Iterable[Any] | None,
    *,
    is_iterable: bool,
    generator: torch.Generator | None,
    seed: int | None,
    epoch: int,
    point: OrderPoint | None = None,
    permutations: Permutations | None = None,
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
        point: Where to take the epoch up again. The generators of the loader and its samplers
            move as they did the first time; the global ones stay as they are.
        permutations: As for `compact_sampler`.
    """
    decider = order_decider(sampler, batch_sampler)
    num_skipped = 0 if point is None else point.num_skipped
    stateful = None
    if hasattr(decider, "state_dict") and isinstance(decider, Stateful):
        stateful = decider
    state = None
    if point is not None and point.sampler_state is not None:
        state = pickle.dumps(point.sampler_state, pickle.HIGHEST_PROTOCOL)
        if stateful is not None:
            stateful.load_state_dict(point.sampler_state)
            num_skipped = 0
    elif point is None and stateful is not None:
        state = pickled_state(stateful)
        if state is None:
            stateful = None
    read = sampler if batch_sampler is None else batch_sampler
    compact: Iterable[Any] = ()
    if point is None or not point.is_over:
        compact = compact_sampler(read, num_skipped=num_skipped, permutations=permutations)
    start = None if point is None else point.start
    keeps = decider is batch_sampler
    with draws_on_cpu():
        if start is None:
            start = _draw_start(decider, is_iterable, generator, seed, epoch)
            indices = _read(compact, keeps=keeps)
        else:
            restore_own(own_generators(decider, generator), start.own)
            with drawing_from(start.globals):
                if seed is None and (generator is not None or start.globals is not None):
                    draw_seed(generator)  # as the first time: the order follows in the stream
                indices = _read(compact, keeps=keeps)
                # Samplers draw when they are asked for the first time.
                indices = nexts(indices)
                indices = chain(list(islice(indices, 1)), indices)
    if point is None:
        return EpochOrder(start, DrawnBatches(indices, sampler=stateful), state)
    drawn = DrawnBatches(
        indices, first_number=point.num_batches, done=point.done, sampler=stateful
    )
    return EpochOrder(start, drawn, state)


def _draw_start(
    decider: Any,
    is_iterable: bool,
    generator: torch.Generator | None,
    seed: int | None,
    epoch: int,
) -> OrderStart:
    generators = own_generators(decider, generator)
    own = capture_own(generators) if generators else {}
    may_draw = not is_iterable and type(decider) is not SequentialSampler
    draws_globals = may_draw and not has_chunks(decider)
    states = None
    if draws_globals:
        states = capture_globals(all_libraries=type(decider) not in _TORCH_SAMPLERS)
    drawn: int | PeekedSeed
    if seed is not None:
        drawn = seed
    elif generator is not None or may_draw:
        drawn = draw_seed(generator) % 2**64
    else:
        drawn = peek_seed(epoch)
    return OrderStart(drawn, own, states)


def check_any_batch(batch_sampler: Iterable[Any] | None) -> None:
    """Refuse an epoch without batches, which would pass unnoticed.

    Args:
        batch_sampler: The loader's.

    Raises:
        EmptyEpochError: If `drop_last` leaves no batch.
    """
    if type(batch_sampler) is not BatchSampler or not batch_sampler.drop_last:
        return
    num_samples = length_if_known(batch_sampler.sampler)
    if num_samples is not None and 0 < num_samples < batch_sampler.batch_size:
        raise EmptyEpochError(
            f"drop_last=True leaves no batch: {num_samples} samples do not fill one of "
            f"batch_size={batch_sampler.batch_size}. Lower batch_size, or set drop_last=False."
        )


def own_generators(
    decider: Any, generator: torch.Generator | None
) -> dict[str, torch.Generator]:
    """Return the generators that belong to a loader and its samplers, by name.

    Args:
        decider: See `order_decider`.
        generator: The loader's.
    """
    if generator is None and type(decider) is SequentialSampler:
        return {}  # to look for what is not there takes a microsecond
    found = {
        "loader": generator,
        "sampler": getattr(decider, "generator", None),
        "inner sampler": getattr(getattr(decider, "sampler", None), "generator", None),
    }
    return {
        name: one
        for name, one in found.items()
        if one is not None and isinstance(one, torch.Generator)  # which asks code of Python
    }


def order_decider(sampler: Iterable[Any], batch_sampler: Iterable[Any] | None) -> Any:
    """Return what decides the order: the batch sampler, or what is below torch's own.

    Args:
        sampler: The loader's.
        batch_sampler: The loader's; None without batches.
    """
    if batch_sampler is None:
        return sampler
    return batch_sampler.sampler if type(batch_sampler) is BatchSampler else batch_sampler


def _read(sampler: Iterable[Any], *, keeps: bool) -> Iterator[Any]:
    """Begin to read a sampler.

    Args:
        sampler: Gives indices, or batches of them.
        keeps: Whether batches are of a sampler that may go on to change them.
    """
    indices = _on_cpu(iter(sampler))
    return map(_kept, indices) if keeps else indices


def _kept(indices: Any) -> Any:
    """Return the indices of a batch as they are now, whatever their sampler does with them afterwards.

    Batches are made later than they are drawn, and may be made twice. What can only be gone through once, such
    as a generator, can be neither counted nor sent.
    """
    if type(indices) in {list, np.ndarray}:
        return indices.copy()
    if isinstance(indices, Iterator | KeysView | ValuesView):
        return list(indices)
    return indices


def _on_cpu(indices: Iterator[Any]) -> Iterator[Any]:
    """Let samplers draw on the CPU, where their generators are, whatever the default device."""
    if draws_on_cpu_by_default():
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
