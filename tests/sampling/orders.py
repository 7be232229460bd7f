"""Samplers of all kinds, and what they give."""

from hypothesis import strategies as st

from fastloader.sampling import (
    ClassBalancedSampler,
    EpochLengthSampler,
    LengthGroupedSampler,
    OrderedSampler,
    ShuffledSampler,
    SubsetSampler,
    WeightedSampler,
)

seeds = st.integers(0, 2**64 - 1)
lengths = st.integers(1, 60)

_plain = st.one_of(
    st.builds(ShuffledSampler, lengths, seeds),
    st.builds(OrderedSampler, lengths),
    st.builds(
        SubsetSampler,
        st.lists(st.integers(0, 99), min_size=1, max_size=40),
        shuffle=st.booleans(),
        seed=seeds,
    ),
    st.builds(
        WeightedSampler,
        st.lists(st.floats(0.001, 1000), min_size=1, max_size=40),
        st.none() | st.integers(1, 90),
        seed=seeds,
    ),
    st.builds(
        WeightedSampler,
        st.lists(st.floats(0.001, 1000), min_size=1, max_size=40),
        replacement=st.just(value=False),
        seed=seeds,
    ),
    st.builds(
        ClassBalancedSampler,
        st.lists(st.integers(0, 5), min_size=1, max_size=40),
        st.none() | st.integers(1, 90),
        seed=seeds,
    ),
    st.builds(
        LengthGroupedSampler,
        st.lists(st.integers(0, 50), min_size=1, max_size=60),
        st.integers(1, 7),
        groups_per_pool=st.integers(1, 4),
        seed=seeds,
    ),
)

any_sampler = st.one_of(_plain, st.builds(EpochLengthSampler, _plain, st.integers(1, 150)))
"""Each kind of sampler of an order that there is."""


def epochs_of(sampler, num_epochs):
    """Return the indices of the first epochs."""
    epochs = []
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    return epochs
