"""Loaders are compared by what both have read."""

import math

import pytest
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from fastloader.tuning._duel import Pace, fight, median_ratio
from fastloader.tuning._final import play_final
from fastloader.tuning._stretches import Stretches, Tape
from fastloader.tuning._trial import Stretch


def read(tape, start, length):
    stretches = Stretches(tape)
    stretches.start, stretches.length = start, length
    return list(stretches)


def test_all_loaders_read_the_same_at_the_same_places():
    tape = Tape(BatchSampler(RandomSampler(range(10)), 3, drop_last=False))

    first, _, second = read(tape, 69, 20), read(tape, 80, 30), read(tape, 67, 22)

    assert second[2:] == first


def test_stretches_overlap_and_go_on_from_pass_to_pass():
    tape = Tape(SequentialSampler(range(4)))

    assert read(tape, 1, 4) == [1, 2, 3, 0]
    assert read(tape, 3, 3) == [3, 0, 1]
    assert read(tape, 1000, 2) == [0, 1]
    assert read(tape, 1001, 2) == [1, 2]


def test_what_was_read_long_ago_is_not_kept():
    tape = Tape(SequentialSampler(range(4)))

    for start in range(0, 100_000, 1000):
        read(tape, start, 1000)

    assert len(tape._drawn) < 2000


def test_an_order_without_samples_ends():
    assert read(Tape(SequentialSampler(())), 5, 3) == []


class Uneven:
    """Batches of which some take a hundred times as long, read by a loader of a known speed."""

    def __init__(self, speed, position):
        self.candidate = self
        self.num_workers = 1
        self.speed = speed
        self.position = position

    def measure(self, num_batches, _max_seconds):
        places = range(self.position, self.position + num_batches)
        self.position += num_batches
        return Stretch(
            num_batches, sum(1 if place % 7 else 100 for place in places) / self.speed
        )


def test_uneven_batches_do_not_flatter_or_wrong_anyone():
    holder, challenger = Uneven(10.0, 23), Uneven(11.0, 0)

    duel = fight(holder, challenger, 1.0, Pace(3.0, math.inf))
    final = play_final([holder, challenger], 1.0, Pace(3.0, math.inf))

    assert duel.ratios == pytest.approx([1.1] * len(duel.ratios))
    assert [b / a for a, b in zip(*final, strict=True)] == pytest.approx([1.1] * 9)


class Ahead:
    """Makes some batches before the clock begins."""

    def __init__(self, speed, num_ahead=0):
        self.candidate = self
        self.num_workers = 1
        self.speed = speed
        self.num_ahead = num_ahead
        self.position = 0

    def measure(self, num_batches, _max_seconds):
        return Stretch(num_batches, max(1e-9, (num_batches - self.num_ahead) / self.speed))


def test_a_rate_expected_at_a_busy_moment_does_not_let_what_is_ahead_decide():
    holder, challenger = Ahead(10_000.0), Ahead(1000.0, num_ahead=32)

    duel = fight(holder, challenger, 40.0, Pace(0.1, math.inf))

    assert duel.gain < 0.2
    assert not any(rate > 1100 for rate in duel.rates)


def test_who_is_twice_as_fast_by_turns_is_as_fast():
    assert median_ratio([2.0, 0.5]) == pytest.approx(1.0)
    assert median_ratio([2.0, 0.5, 1.1]) == pytest.approx(1.1)
