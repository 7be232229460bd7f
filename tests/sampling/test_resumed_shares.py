"""A loader that shares its samples goes on after a state on any number of ranks."""

import os
from itertools import islice
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from fastloader import FastLoader
from fastloader.errors import ResumeError
from fastloader.sampling import ClassBalancedSampler, LengthGroupedSampler, WeightedSampler

LENGTH = 30
DATASET = TensorDataset(torch.arange(LENGTH))
LABELS = [index % 3 for index in range(LENGTH)]

orders = st.sampled_from([
    {"shuffle": True, "seed": 4},
    {"shuffle": False},
    {"shuffle": True, "samples_per_epoch": 24, "seed": 2},
    {"sampler": WeightedSampler([1 + n for n in range(LENGTH)], 36)},
    {"sampler": ClassBalancedSampler(LABELS)},
    {"sampler": LengthGroupedSampler(LABELS, 4)},
])  # fmt: skip

pytestmark = pytest.mark.usefixtures("nothing_shares_yet")


def loader_of(rank, world_size, **options):
    with mock.patch.dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world_size)):
        return FastLoader(DATASET, distributed=True, **options)


def numbers(batches):
    return [batch.tolist() for [batch] in batches]


def steps_of(parts):
    """Return the samples of all ranks in the order in which they are drawn."""
    longest = max(len(part) for part in parts)
    return [part[place] for place in range(longest) for part in parts if place < len(part)]


@settings(max_examples=40)
@given(
    order=orders,
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    num_read=st.integers(0, 2),
    epoch=st.integers(0, 2),
)
def test_what_is_left_of_an_epoch_is_read_once_by_any_number_of_ranks(
    order, before, after, sizes, num_read, epoch
):
    read, states = [], []
    for rank in range(before):
        loader = loader_of(rank, before, batch_size=sizes[0], **order)
        loader.set_epoch(epoch)
        batches = iter(loader)
        read.append([i for batch in numbers(islice(batches, num_read)) for i in batch])
        states.append(loader.state_dict())
    whole = FastLoader(DATASET, sampler=getattr(loader.sampler, "sampler", loader.sampler))
    if before == 1:  # it is the sampler itself, or torch's
        whole = loader_of(0, 1, **order)
    whole.set_epoch(epoch)
    expected = [i for batch in numbers(whole) for i in batch]

    rest, next_epochs = [], []
    for rank in range(after):
        loader = loader_of(rank, after, batch_size=sizes[1], **order)
        loader.load_state_dict(states[0])
        rest.append([i for batch in numbers(loader) for i in batch])
        next_epochs.append([i for batch in numbers(loader) for i in batch])

    drawn = steps_of(read) + steps_of(rest)
    assert drawn[: len(expected)] == expected
    assert len(drawn) - len(expected) < max(before, after)  # padding
    whole.set_epoch(epoch + 1)
    expected = [i for batch in numbers(whole) for i in batch]
    assert steps_of(next_epochs)[: len(expected)] == expected


@pytest.mark.parametrize(
    ("before", "after", "options", "message"),
    [
        (1, 2, {"shuffle": True}, "seed or length of the epoch's order have changed"),
        (2, 1, {"shuffle": True}, "cannot share out what is left of the epoch anew"),
        (2, 4, {"batches_per_epoch": 3}, "seed or length of the epoch's order have changed"),
    ],
    ids=["from torch's order", "to torch's order", "another length"],
)
def test_a_place_in_another_order_is_refused(before, after, options, message):
    loader = loader_of(0, before, batch_size=2, **options)
    next(iter(loader))

    with pytest.raises(ResumeError, match=message):
        loader_of(0, after, batch_size=2, **options).load_state_dict(loader.state_dict())


def test_such_a_run_goes_on_at_the_end_of_an_epoch():
    loader = loader_of(0, 1, batch_size=2, shuffle=True)
    list(loader)

    shared = loader_of(0, 2, batch_size=2, shuffle=True)
    shared.load_state_dict(loader.state_dict())

    assert len(list(shared)) == 8
    assert shared.sampler.epoch == 1
