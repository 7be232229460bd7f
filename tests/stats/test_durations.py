"""Quantiles are right to two percent in bounded memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloader.stats import _durations
from fastloader.stats._durations import Durations

seconds = st.lists(st.floats(1e-7, 1e4), min_size=1, max_size=200)


@given(seconds, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_off_by_at_most_two_percent(values, share):
    durations = Durations()
    durations.add(values)

    exact = np.quantile(values, share, method="inverted_cdf")

    assert durations.quantile(share) == pytest.approx(exact, rel=0.021)


@pytest.mark.parametrize("most", [1, 4, 100])
def test_durations_that_are_not_in_buckets_yet_count(monkeypatch, most):
    monkeypatch.setattr(_durations, "_MOST_LOOSE", most)
    merged, other = Durations(), Durations()

    for number in range(1, 8):
        merged.add([float(number)])
        other.add([10.0 * number])
    merged.merge(other)

    assert merged.count == 14
    assert merged.sum_seconds == 28 + 280
    assert merged.max_seconds == 70.0
    assert merged.quantile(0.5) == pytest.approx(7.0, rel=0.02)
    assert other.count == 7


@given(seconds, seconds)
def test_two_histograms_add_up_to_one_of_all_durations(first, second):
    merged, other, together = Durations(), Durations(), Durations()
    merged.add(first)
    other.add(second)
    together.add(first + second)

    merged.merge(other)

    assert merged.count == together.count
    assert merged.max_seconds == together.max_seconds
    assert merged.quantile(0.5) == together.quantile(0.5)


def test_nothing_measured_has_no_quantile():
    assert Durations().quantile(0.5) is None


def test_durations_of_years_are_counted():
    durations = Durations()

    durations.add([1e8, 1.0, 1e9])

    assert durations.max_seconds == 1e9
    assert durations.quantile(0.3) == pytest.approx(1.0, rel=0.02)
    assert durations.quantile(1.0) > 1e6


def test_durations_of_no_length_at_all_are_counted():
    durations = Durations()

    durations.add([0.0, 0.0])

    assert durations.count == 2
    assert durations.quantile(0.5) == 0.0
