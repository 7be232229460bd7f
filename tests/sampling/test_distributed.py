"""Ranks share any order: each sample on one rank, or equal numbers on all."""

import pickle
from itertools import zip_longest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastloader.errors import SettingsError
from fastloader.sampling import (
    DistributedSampler,
    EpochSampler,
    OrderedSampler,
    ShuffledSampler,
)
from fastloader.sampling._compact import compact_sampler
from tests.sampling.orders import any_sampler

worlds = st.integers(1, 6)
unevens = st.sampled_from(["pad", "drop", "keep"])


class Users:
    """A sampler of which nothing is known."""

    def __init__(self, indices):
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def __iter__(self):
        return iter(self.indices)


def shares(world_size, sampler, *, uneven="keep", epoch=0, num_done=None):
    found = []
    for rank in range(world_size):
        share = DistributedSampler([], world_size, rank, sampler=sampler, uneven=uneven)
        if num_done is not None:
            share.start_at(num_done)
        share.set_epoch(epoch)
        found.append(list(share))
        assert len(found[-1]) == len(share)
    return found


def woven(parts):
    """Put an order together again from what ranks take of it."""
    absent = object()
    rounds = zip_longest(*parts, fillvalue=absent)
    return [index for indices in rounds for index in indices if index is not absent]


@given(sampler=any_sampler, world_size=worlds, epoch=st.integers(0, 3))
def test_without_padding_each_place_of_the_order_is_on_one_rank(sampler, world_size, epoch):
    sampler.set_epoch(epoch)
    order = list(sampler)

    parts = shares(world_size, sampler, epoch=epoch)

    assert woven(parts) == order
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(sampler=any_sampler, world_size=worlds)
def test_padding_gives_equal_numbers_with_the_first_again(sampler, world_size):
    order = list(sampler)

    parts = shares(world_size, sampler, uneven="pad")

    total = -(-len(order) // world_size) * world_size
    repeated = order * (1 + total // len(order))
    assert {len(part) for part in parts} == {total // world_size}
    assert woven(parts) == repeated[:total]


@given(sampler=any_sampler, world_size=worlds)
def test_dropping_gives_equal_numbers_without_the_last(sampler, world_size):
    order = list(sampler)

    parts = shares(world_size, sampler, uneven="drop")

    each = len(order) // world_size
    assert {len(part) for part in parts} == {each}
    assert woven(parts) == order[: each * world_size]


@given(
    sampler=any_sampler,
    before=worlds,
    after=worlds,
    num_read=st.integers(0, 30),
    epoch=st.integers(0, 2),
)
def test_a_resumed_epoch_reads_the_rest_on_any_number_of_ranks(
    sampler, before, after, num_read, epoch
):
    sampler.set_epoch(epoch)
    order = list(sampler)
    read = [part[:num_read] for part in shares(before, sampler, epoch=epoch)]
    num_done = min(num_read * before, len(order))

    rest = shares(after, sampler, epoch=epoch, num_done=num_done)

    assert woven(read) + woven(rest) == order


@given(world_size=worlds, uneven=unevens, num_done=st.integers(0, 12))
def test_what_is_left_of_an_epoch_is_shared_as_evenly(world_size, uneven, num_done):
    whole = list(ShuffledSampler(10))

    parts = shares(world_size, ShuffledSampler(10), uneven=uneven, num_done=num_done)

    assert parts == shares(world_size, whole[num_done:], uneven=uneven)


def test_a_start_holds_for_one_pass():
    share = DistributedSampler(range(10), 2, 0, shuffle=False)
    share.start_at(6)
    share.set_epoch(3)

    assert (len(share), list(share), len(share)) == (2, [6, 8], 2)
    assert (list(share), len(share)) == ([0, 2, 4, 6, 8], 5)
    share.start_at(6)
    list(share)
    share.set_epoch(4)
    assert (len(share), list(share)) == (5, [0, 2, 4, 6, 8])


def test_a_start_before_the_first_sample_is_refused():
    with pytest.raises(SettingsError, match="num_samples must be 0 or more, but got -1"):
        DistributedSampler(range(3), 1, 0).start_at(-1)


@given(
    world_size=worlds, uneven=unevens, length=st.integers(1, 40), batch_size=st.integers(1, 5)
)
def test_batches_of_a_share_are_arrays_cut_from_it(world_size, uneven, length, batch_size):
    for rank in range(world_size):
        share = DistributedSampler(range(length), world_size, rank, uneven=uneven)
        batches = list(compact_sampler(BatchSampler(share, batch_size, drop_last=False)))

        assert [index for batch in batches for index in batch] == list(share)
        assert all(batch == batch.array.tolist() for batch in batches)


def test_it_is_torchs_distributed_sampler_with_its_attributes():
    share = DistributedSampler(range(10), 4, 3, shuffle=False, seed=2)

    assert isinstance(share, torch.utils.data.DistributedSampler)
    assert isinstance(share, EpochSampler)
    names = (
        "num_replicas",
        "rank",
        "epoch",
        "seed",
        "shuffle",
        "drop_last",
        "num_samples",
        "total_size",
    )
    assert [getattr(share, name) for name in names] == [4, 3, 0, 2, False, False, 3, 12]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [8, 10, 3])
def test_lengths_and_order_without_shuffling_are_torchs(length, drop_last):
    for rank in range(4):
        options = {"num_replicas": 4, "rank": rank, "shuffle": False, "drop_last": drop_last}
        torchs = torch.utils.data.DistributedSampler(range(length), **options)
        ours = DistributedSampler(range(length), **options)

        assert list(ours) == list(torchs)
        assert (ours.num_samples, ours.total_size) == (torchs.num_samples, torchs.total_size)


def test_the_total_size_of_a_share_that_keeps_all_is_that_of_the_order():
    assert DistributedSampler(range(10), 4, 0, uneven="keep").total_size == 10


def test_rank_and_number_of_ranks_are_those_of_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")

    share = DistributedSampler(range(9))

    assert (share.rank, share.num_replicas) == (1, 3)


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(12)),
        RandomSampler(range(12), num_samples=5),
        SequentialSampler(range(12)),
        SubsetRandomSampler(range(3, 9)),
        WeightedRandomSampler([1.0] * 12, 12, replacement=False),
        torch.arange(5),
        range(3, 12),
    ],
    ids=["random", "fewer", "sequential", "subset", "weighted", "tensor", "range"],
)
def test_torchs_samplers_are_shared_whatever_the_global_state_of_each_rank(sampler):
    parts = []
    for rank in range(3):
        torch.manual_seed(rank)
        parts.append(list(DistributedSampler([], 3, rank, sampler=sampler, uneven="keep")))

    drawn = woven(parts)
    assert (len(drawn), len(set(drawn))) == (len(sampler), len(sampler))


def test_torchs_draws_with_replacement_are_shared():
    drawn = RandomSampler(range(3), replacement=True, num_samples=1000)

    parts = shares(2, drawn)

    assert {index for part in parts for index in part} == {0, 1, 2}
    assert [len(part) for part in parts] == [500, 500]


def test_any_sampler_that_gives_integers_can_be_shared():
    assert shares(2, Users([5, 3, 9])) == [[5, 9], [3]]


def test_a_users_sampler_is_told_the_epoch():
    class Told(Users):
        def set_epoch(self, epoch):
            self.indices = [epoch] * 4

    assert shares(2, Told([0, 0]), epoch=7) == [[7, 7], [7, 7]]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [(Users([(1, 2)]), "must give integers"), (iter([1]), "has no length")],
    ids=["pairs", "iterator"],
)
def test_what_cannot_be_shared_is_refused(sampler, message):
    with pytest.raises(SettingsError, match=message):
        list(DistributedSampler([], 2, 0, sampler=sampler))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_replicas": 2, "rank": 2}, "rank must be from 0 to 1"),
        ({"num_replicas": 2, "rank": -1}, "rank must be from 0 to 1"),
        ({"num_replicas": -1, "rank": 0}, "num_replicas must be 1 or more, but got -1"),
        ({"uneven": "some"}, "uneven should be 'pad', 'drop' or 'keep', but got 'some'"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"num_replicas": "2", "rank": 0}, "num_replicas must be a whole number, but got '2'"),
        ({"num_replicas": 2, "rank": "0"}, "rank must be a whole number, but got '0'"),
        ({"seed": 1.5}, "seed must be a whole number, but got 1.5"),
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(SettingsError, match=message):
        DistributedSampler(range(4), **options)


def test_a_share_can_be_pickled():
    share = DistributedSampler(range(10), 2, 1, sampler=OrderedSampler(10))

    assert list(pickle.loads(pickle.dumps(share))) == [1, 3, 5, 7, 9]
