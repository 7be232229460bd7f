"""Turns: how they are divided, and in which order they come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fastloader.mixing._turns import deal, turns_of_block
from tests.mixing.mixtures import mixture_of

_weights = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


@given(_weights, st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_all_turns_are_dealt_and_nobody_is_far_from_what_is_due(weights, sizes):
    dealt = [0] * len(weights)
    for size in sizes:
        turns = deal(weights, dealt, size)
        assert sum(turns) == size
        assert min(turns) >= 0
        dealt = [had + new for had, new in zip(dealt, turns, strict=True)]
        due = [weight * sum(dealt) / sum(weights) for weight in weights]
        assert all(abs(a - b) < 2 for a, b in zip(dealt, due, strict=True))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 8))
def test_shares_are_exact_where_they_are_whole_numbers(parts, times):
    weights = [part / sum(parts) for part in parts]
    dealt = [0] * len(parts)

    for _ in range(times):
        turns = deal(weights, dealt, sum(parts))
        dealt = [had + new for had, new in zip(dealt, turns, strict=True)]

    assert dealt == [part * times for part in parts]


def test_a_source_that_is_due_less_than_one_turn_a_block_is_not_forgotten():
    dealt = [0, 0]

    for _ in range(100):
        turns = deal([0.99, 0.01], dealt, 10)
        dealt = [had + new for had, new in zip(dealt, turns, strict=True)]

    assert dealt == [990, 10]


@given(st.integers(1, 5), st.integers(1, 200), st.integers(0, 5))
def test_weighted_turns_have_exact_shares_whatever_the_burst(burst, size, number):
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    mixture = mixture_of("abc", strategy="weighted", weights=weights, burst=burst)

    turns = turns_of_block(mixture, (0, 1, 2), (0, 0, 0), size, (0, 0, number))

    assert np.bincount(turns, minlength=3).tolist() == deal([0.5, 0.3, 0.2], [0, 0, 0], size)


def test_bursts_are_whole_but_for_the_last_of_each_source():
    mixture = mixture_of("ab", strategy="weighted", weights={"a": 1, "b": 1}, burst=4)

    turns = turns_of_block(mixture, (0, 1), (0, 0), 90, (0, 0, 0))

    ends = np.flatnonzero(np.diff(turns)) + 1
    runs = np.diff([0, *ends, len(turns)])
    assert sorted(runs % 4).count(0) >= len(runs) - 4


def test_no_source_is_missing_for_long():
    mixture = mixture_of("ab", strategy="weighted", weights={"a": 3, "b": 1})

    turns = turns_of_block(mixture, (0, 1), (0, 0), 400, (0, 0, 0))

    gaps = np.diff(np.flatnonzero(turns == 1))
    assert gaps.max() < 8


def test_random_turns_follow_the_weights_on_average():
    mixture = mixture_of("ab", strategy="random", weights={"a": 3, "b": 1})

    blocks = [turns_of_block(mixture, (0, 1), (0, 0), 128, (0, 0, n)) for n in range(100)]

    assert 0.7 < 1 - np.concatenate(blocks).mean() < 0.8


@given(st.sampled_from(["weighted", "random"]), st.integers(0, 2**64 - 1))
def test_the_order_is_redrawn_each_epoch_and_known_from_seed_and_epoch(strategy, seed):
    mixture = mixture_of("ab", strategy=strategy)

    first, again, other = (
        turns_of_block(mixture, (0, 1), (0, 0), 64, (seed, epoch, 0)).tolist()
        for epoch in (0, 0, 1)
    )

    assert first == again
    assert first != other


def test_a_pattern_goes_on_from_block_to_block():
    mixture = mixture_of("ab", strategy="pattern", pattern="aab", burst=2)

    first = turns_of_block(mixture, (0, 1), (0, 0), 4, (0, 0, 0))
    second = turns_of_block(mixture, (0, 1), (4, 0), 4, (0, 0, 1))

    assert [*first, *second] == [0, 0, 0, 0, 1, 1, 0, 0]
