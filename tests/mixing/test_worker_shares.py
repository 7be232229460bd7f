"""Shares of one budget of workers."""

from hypothesis import given
from hypothesis import strategies as st

from fastloader.mixing._worker_shares import share_workers

_sources = st.lists(
    st.tuples(st.none() | st.integers(0, 5), st.sampled_from([0.0, 0.1, 1.0, 3.0])),
    min_size=1,
    max_size=6,
)


@given(st.integers(0, 20), _sources)
def test_no_more_workers_than_the_budget_and_than_each_can_use(budget, sources):
    needs, weights = zip(*sources, strict=True)

    shares = share_workers(budget, needs, weights)

    assert sum(shares) <= budget
    for share, need, weight in zip(shares, needs, weights, strict=True):
        assert share <= (share if need is None else need)
        assert not (share and weight == 0)


@given(st.integers(0, 20), _sources)
def test_no_worker_is_left_over_while_a_source_can_use_it(budget, sources):
    needs, weights = zip(*sources, strict=True)

    shares = share_workers(budget, needs, weights)

    if sum(shares) < budget:
        for share, need, weight in zip(shares, needs, weights, strict=True):
            assert share == need or weight == 0


def test_heavier_sources_get_more():
    assert share_workers(8, [None, None, 0], [3, 1, 1]) == [6, 2, 0]


def test_each_that_needs_some_gets_one_first():
    assert share_workers(3, [None, None, 1], [100, 1, 1]) == [1, 1, 1]
