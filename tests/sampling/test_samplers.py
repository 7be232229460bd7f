"""Samplers give what they promise, as a pure function of seed and epoch."""

import pickle
import tracemalloc
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from fastloader import FastLoader
from fastloader.errors import EmptyEpochError, SettingsError
from fastloader.sampling import (
    ClassBalancedSampler,
    EpochLengthSampler,
    EpochSampler,
    LengthGroupedSampler,
    OrderedSampler,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
)
from fastloader.sampling._compact import compact_sampler
from tests.sampling.orders import any_sampler, epochs_of, seeds


class Backwards(EpochSampler):
    """What a user writes."""

    def __len__(self):
        return 5

    def draw(self, epoch):
        return lambda places: 4 - places


# What holds for all of them.


@given(sampler=any_sampler)
def test_an_epoch_has_as_many_samples_as_it_says(sampler):
    assert len(list(sampler)) == len(sampler)


@given(sampler=any_sampler, epoch=st.integers(0, 5))
def test_the_order_depends_on_seed_and_epoch_alone(sampler, epoch):
    copy = pickle.loads(pickle.dumps(sampler))
    torch.manual_seed(1)
    list(sampler)  # another epoch, and global states that were moved
    sampler.set_epoch(epoch)
    copy.set_epoch(epoch)
    torch.manual_seed(2)

    assert list(sampler) == list(copy)


@given(sampler=any_sampler, first=st.integers(0, 40))
def test_an_order_can_be_taken_up_at_any_place(sampler, first):
    order = list(sampler)

    rest = [index for chunk in sampler.chunks(first) for index in chunk.tolist()]

    assert rest == order[first:]


@given(sampler=any_sampler, batch_size=st.integers(1, 9), drop_last=st.booleans())
def test_batches_are_cut_as_torch_cuts_them(sampler, batch_size, drop_last):
    batches = BatchSampler(sampler, batch_size, drop_last)

    assert list(compact_sampler(batches)) == list(batches)


@given(sampler=any_sampler)
def test_no_global_generator_is_moved(sampler):
    torch.manual_seed(0)
    state = torch.get_rng_state().tolist()

    list(sampler)

    assert torch.get_rng_state().tolist() == state


def test_an_order_is_that_of_the_moment_when_it_is_asked_for():
    sampler = ShuffledSampler(20)
    expected = list(sampler)
    for started in (
        iter(sampler),
        iter(compact_sampler(BatchSampler(sampler, 20, drop_last=False))),
    ):
        sampler.set_epoch(3)
        order = list(started)
        sampler.set_epoch(0)

        assert (order if len(order) > 1 else order[0]) == expected


def test_refreshing_gives_another_order():
    sampler = ShuffledSampler(50)
    first = list(sampler)

    sampler.refresh()

    assert list(sampler) != first


def test_a_users_sampler_needs_a_length_and_a_draw():
    assert list(Backwards()) == [4, 3, 2, 1, 0]
    assert [b.tolist() for b in FastLoader(range(5), 2, sampler=Backwards())] == [
        [4, 3],
        [2, 1],
        [0],
    ]
    assert [b.tolist() for b in DataLoader(range(5), 2, sampler=Backwards())] == [
        [4, 3],
        [2, 1],
        [0],
    ]


def test_a_users_own_iteration_wins():
    class Odd(Backwards):
        def __iter__(self):
            return iter([1, 3])

    assert [b.tolist() for b in FastLoader(range(5), 2, sampler=Odd())] == [[1, 3]]


def test_a_negative_seed_is_refused():
    with pytest.raises(SettingsError, match="seed must be 0 or more, but got -1"):
        ShuffledSampler(3, seed=-1)


# Shuffled, ordered, some.


@given(length=st.integers(0, 60), seed=seeds)
def test_shuffling_gives_each_sample_once(length, seed):
    assert sorted(ShuffledSampler(length, seed)) == list(range(length))


def test_epochs_and_seeds_have_other_orders():
    orders = [*epochs_of(ShuffledSampler(30, 1), 3), *epochs_of(ShuffledSampler(30, 2), 3)]

    assert len(set(map(tuple, orders))) == 6


def test_a_shuffled_sampler_has_the_order_of_a_loader_with_the_seed():
    loader = FastLoader(range(40), 4, shuffle=True, seed=5)

    orders = [[i for batch in loader for i in batch.tolist()] for _ in range(2)]

    assert orders == epochs_of(ShuffledSampler(40, 5), 2)


def test_samples_in_order_are_the_same_each_epoch():
    assert epochs_of(OrderedSampler(range(4)), 2) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    "indices",
    [[5, 2, 2], (5, 2, 2), np.array([5, 2, 2], np.uint8), torch.tensor([5, 2, 2])],
    ids=["list", "tuple", "array", "tensor"],
)
def test_a_subset_is_some_samples_in_order_or_shuffled(indices):
    assert list(SubsetSampler(indices, shuffle=False)) == [5, 2, 2]
    assert sorted(SubsetSampler(indices)) == [2, 2, 5]


def test_a_mask_makes_a_subset():
    assert list(SubsetSampler([True, False, True], shuffle=False)) == [0, 2]


@pytest.mark.parametrize(
    "indices", [[0.5], [[1, 2]], [-1]], ids=["fractions", "table", "negative"]
)
def test_what_is_no_list_of_indices_is_refused(indices):
    with pytest.raises(SettingsError, match="indices must be"):
        SubsetSampler(indices)


def test_an_empty_subset_is_empty():
    assert list(SubsetSampler([])) == []


# Weights.


@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without replacement"])
def test_samples_without_weight_never_come(replacement):
    sampler = WeightedSampler([0, 1, 0, 3, 0], 2, replacement=replacement)

    drawn = {index for epoch in epochs_of(sampler, 200) for index in epoch}

    assert drawn == {1, 3}


def test_samples_come_as_often_as_their_weights_say():
    weights = np.array([1.0, 2.0, 0.0, 5.0])

    counts = np.bincount(list(WeightedSampler(weights, 40_000, seed=3)), minlength=4)

    expected = 40_000 * weights / weights.sum()
    # Four standard deviations of a binomial.
    assert np.all(np.abs(counts - expected) <= 4 * np.sqrt(expected) + 1e-9)


def test_the_first_of_a_draw_without_replacement_is_drawn_by_weight():
    weights = np.array([1.0, 2.0, 5.0])
    sampler = WeightedSampler(weights, 2, replacement=False, seed=1)

    epochs = np.array(epochs_of(sampler, 8000))

    counts = Counter(map(tuple, epochs.tolist()))
    for (first, second), count in counts.items():
        left = weights.sum() - weights[first]
        expected = 8000 * weights[first] / weights.sum() * weights[second] / left
        assert abs(count - expected) < 4.5 * np.sqrt(expected)
    assert len(counts) == 6


@given(
    weights=st.lists(st.just(0.0) | st.floats(1e-300, 1e300), min_size=1, max_size=30).filter(
        any
    ),
    seed=seeds,
)
def test_all_weighted_samples_come_once_without_replacement(weights, seed):
    possible = np.flatnonzero(np.array(weights) / max(weights))
    sampler = WeightedSampler(weights, len(possible), replacement=False, seed=seed)

    assert sorted(sampler) == possible.tolist()


def test_there_may_be_more_weights_than_torch_takes():
    number = 2**24 + 10
    weights = np.zeros(number, np.uint8)
    weights[-3:] = 1

    drawn = set(WeightedSampler(weights, 50))

    assert drawn == {number - 3, number - 2, number - 1}


def test_new_weights_hold_from_the_next_pass_on():
    sampler = WeightedSampler([1, 0], 5)

    sampler.set_weights([0, 1])

    assert list(sampler) == [1] * 5


@pytest.mark.parametrize(
    ("weights", "options", "message"),
    [
        ([], {}, "weights must be a list"),
        ([[1.0]], {}, "weights must be a list"),
        ([0.0, 0.0], {}, "not all 0"),
        ([-1.0, 2.0], {}, "0 or more"),
        ([float("nan"), 2.0], {}, "finite"),
        ([1.0], {"num_samples": 0}, "num_samples must be 1 or more"),
        ([1.0, 0.0], {"replacement": False}, "only 1 weights are above 0"),
    ],
    ids=["none", "table", "zeros", "negative", "nan", "no samples", "too many"],
)
def test_weights_that_cannot_be_used_are_refused(weights, options, message):
    with pytest.raises(SettingsError, match=message):
        WeightedSampler(weights, **options)


# Classes.


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    num_samples=st.none() | st.integers(1, 100),
    seed=seeds,
)
def test_classes_have_equal_numbers_in_an_epoch_and_over_epochs(labels, num_samples, seed):
    sampler = ClassBalancedSampler(labels, num_samples, seed=seed)

    epochs = epochs_of(sampler, 4)

    for some in ([epochs[2]], epochs):
        counts = Counter(labels[index] for epoch in some for index in epoch)
        numbers = [counts[label] for label in set(labels)]
        assert max(numbers) - min(numbers) <= 1


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=30), seed=seeds)
def test_the_samples_of_a_class_come_equally_often(labels, seed):
    drawn = Counter(
        index
        for epoch in epochs_of(ClassBalancedSampler(labels, 17, seed=seed), 5)
        for index in epoch
    )

    for label in set(labels):
        numbers = [drawn[index] for index, other in enumerate(labels) if other == label]
        assert max(numbers) - min(numbers) <= 1


def test_labels_may_be_text_or_tensors():
    assert len(set(ClassBalancedSampler(["a", "b", "b"], 2))) == 2
    assert len(set(ClassBalancedSampler(torch.tensor([1, 0, 0]), 2))) == 2


@pytest.mark.parametrize("labels", [[], [[1, 2]]], ids=["none", "table"])
def test_what_is_no_list_of_labels_is_refused(labels):
    with pytest.raises(SettingsError, match="labels must be a list"):
        ClassBalancedSampler(labels)


def test_an_epoch_of_no_samples_is_refused():
    with pytest.raises(SettingsError, match="num_samples must be 1 or more, but got 0"):
        ClassBalancedSampler([1], 0)


# Lengths.


@given(
    lengths=st.lists(st.integers(0, 9), max_size=60),
    group_size=st.integers(1, 8),
    groups_per_pool=st.integers(1, 5),
    seed=seeds,
)
def test_grouping_by_length_gives_each_sample_once(lengths, group_size, groups_per_pool, seed):
    sampler = LengthGroupedSampler(
        lengths, group_size, groups_per_pool=groups_per_pool, seed=seed
    )

    assert sorted(sampler) == list(range(len(lengths)))


def test_batches_of_like_length_need_little_padding():
    lengths = np.random.default_rng(0).lognormal(4, 0.7, 20_000).astype(int) + 1

    def padding(sampler):
        batches = lengths[np.array(list(sampler))].reshape(-1, 20)
        return 1 - lengths.sum() / (batches.max(axis=1) * 20).sum()

    assert padding(ShuffledSampler(20_000)) > 0.5
    assert padding(LengthGroupedSampler(lengths, 20)) < 0.1


def test_long_batches_come_at_any_time_and_are_put_together_anew():
    lengths = np.arange(1000)

    first, second = (
        np.array(epoch).reshape(-1, 10)
        for epoch in epochs_of(LengthGroupedSampler(lengths, 10, groups_per_pool=20), 2)
    )

    places = np.argsort(lengths[first].mean(axis=1))
    assert abs(np.corrcoef(places, np.arange(100))[0, 1]) < 0.4
    assert not {frozenset(b) for b in first.tolist()} & {frozenset(b) for b in second.tolist()}


def test_the_samples_that_fill_no_group_are_not_the_longest():
    lengths = np.arange(1009)

    last = [epoch[-9:] for epoch in epochs_of(LengthGroupedSampler(lengths, 10), 30)]

    assert 350 < np.mean(last) < 650


@pytest.mark.parametrize(
    ("lengths", "group_size", "groups_per_pool", "message"),
    [
        ([[1]], 1, 1, "lengths must be a list"),
        (["a"], 1, 1, "lengths must be a list"),
        ([1], 0, 1, "group_size and groups_per_pool must be 1 or more"),
        ([1], 1, 0, "group_size and groups_per_pool must be 1 or more"),
    ],
    ids=["table", "text", "no group", "no pool"],
)
def test_groups_that_cannot_be_made_are_refused(lengths, group_size, groups_per_pool, message):
    with pytest.raises(SettingsError, match=message):
        LengthGroupedSampler(lengths, group_size, groups_per_pool=groups_per_pool)


# Length of an epoch.


@given(sampler=any_sampler, num_samples=st.integers(1, 100), num_epochs=st.integers(1, 5))
def test_epochs_of_a_length_are_the_passes_one_after_the_other(
    sampler, num_samples, num_epochs
):
    total = num_samples * num_epochs
    passes = epochs_of(sampler, -(-total // len(sampler)))

    epochs = epochs_of(EpochLengthSampler(sampler, num_samples), num_epochs)

    assert [len(epoch) for epoch in epochs] == [num_samples] * num_epochs
    assert list(chain(*epochs)) == list(chain(*passes))[:total]


def test_a_length_of_none_is_refused():
    with pytest.raises(SettingsError, match="1 sample or more, but 0"):
        EpochLengthSampler(OrderedSampler(3), 0)


def test_nothing_fills_no_epoch():
    with pytest.raises(EmptyEpochError, match="has no samples to fill an epoch of 4"):
        EpochLengthSampler(OrderedSampler(0), 4)


# Memory.


@pytest.mark.parametrize(
    "sampler",
    [
        ShuffledSampler(1_000_000),
        WeightedSampler(np.ones(1_000_000)),
        EpochLengthSampler(ShuffledSampler(1_000_000), 300_000),
    ],
    ids=["shuffled", "weighted", "epoch length"],
)
def test_an_order_takes_no_python_object_for_each_sample(sampler):
    batches = iter(compact_sampler(BatchSampler(sampler, 100, drop_last=False)))
    tracemalloc.start()
    next(batches)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak <= 8 * 1_000_000 + 2_000_000
    assert held <= 8 * 1_000_000 + 1_000_000
