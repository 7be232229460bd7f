"""Compact samplers give torch's order and leave the generators where torch leaves them."""

import pickle
import tracemalloc
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastloader.sampling._compact import compact_sampler
from fastloader.sampling._drawn import DrawnBatches
from fastloader.sampling._seeded import SeededSampler


class Unsized:
    def __iter__(self):
        return iter([2, 0, 1])


samplers = st.builds(
    lambda length, num_samples, replacement, own, batch: {
        "length": length,
        "num_samples": num_samples,
        "replacement": replacement,
        "own": own,
        "batch": batch,
    },
    length=st.integers(1, 70),
    num_samples=st.none() | st.integers(1, 150),
    replacement=st.booleans(),
    own=st.booleans(),
    batch=st.none() | st.tuples(st.integers(1, 20), st.booleans()),
)


def build(length, num_samples, replacement, own, batch):
    generator = torch.Generator().manual_seed(5) if own else None
    sampler = RandomSampler(
        range(length), replacement=replacement, num_samples=num_samples, generator=generator
    )
    return (BatchSampler(sampler, *batch) if batch else sampler), generator


@given(options=samplers, num_read=st.none() | st.integers(0, 30))
def test_order_and_generators_are_torchs_at_every_moment(options, num_read):
    outcomes = []
    for compact in (lambda sampler: sampler, compact_sampler):
        torch.manual_seed(3)
        sampler, generator = build(**options)
        iterable = compact(sampler)
        epochs = [list(islice(iter(iterable), num_read)) for _ in range(2)]
        state = torch.get_rng_state().tolist()
        own = None if generator is None else generator.get_state().tolist()
        outcomes.append((epochs, state, own))

    assert outcomes[1] == outcomes[0]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    "source",
    [SequentialSampler(range(7)), [5, 1, 1], Unsized()],
    ids=["sequential", "a list", "without a length"],
)
def test_batches_over_any_sampler_are_torchs(source, drop_last):
    batches = BatchSampler(source, 2, drop_last)

    assert list(compact_sampler(batches)) == list(batches)


def test_the_length_is_the_samplers():
    batches = BatchSampler(SequentialSampler(range(7)), 2, drop_last=False)

    assert len(compact_sampler(batches)) == 4


def test_a_subclass_keeps_its_own_order():
    class Backwards(RandomSampler):
        def __iter__(self):
            return iter([2, 1, 0])

    assert list(compact_sampler(Backwards(range(3)))) == [2, 1, 0]


@pytest.mark.parametrize("num_skipped", [0, 1, 7, 8192, 9000, 9999, 10_000])
def test_the_first_samples_can_be_left_out_of_batches(num_skipped):
    def orders():
        yield RandomSampler(range(10_000), generator=torch.Generator().manual_seed(1))
        yield SequentialSampler(range(10_000))
        yield SeededSampler(range(10_000), seed=1)
        yield SubsetRandomSampler(range(10_000), generator=torch.Generator().manual_seed(1))

    for whole, cut in zip(orders(), orders(), strict=True):
        batches = compact_sampler(BatchSampler(cut, 64, False), num_skipped=num_skipped)

        assert [index for batch in batches for index in batch] == list(whole)[num_skipped:]


def test_the_first_batches_of_a_users_batch_sampler_can_be_left_out():
    assert list(compact_sampler([[1, 2], [3], [4, 5]], num_skipped=2)) == [[4, 5]]


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(6)),
        RandomSampler(range(6), replacement=True),
        SubsetRandomSampler(range(6)),
        WeightedRandomSampler([1.0] * 6, 6),
        DistributedSampler(range(6), num_replicas=2, rank=0),
        BatchSampler(SubsetRandomSampler(range(6)), 2, drop_last=False),
    ],
    ids=["shuffled", "with replacement", "subset", "weighted", "distributed", "batches"],
)
def test_indices_are_drawn_on_the_cpu_whatever_the_default_device_is(sampler):
    torch.manual_seed(0)
    expected = list(sampler)
    torch.manual_seed(0)
    torch.set_default_device("meta")
    try:
        assert list(compact_sampler(sampler)) == expected
    finally:
        torch.set_default_device(None)


def test_a_long_order_is_not_made_a_list():
    sampler = compact_sampler(BatchSampler(RandomSampler(range(300_000)), 8, drop_last=False))

    tracemalloc.start()
    next(iter(sampler))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1_000_000


def drawn_batches():
    for sampler in (SequentialSampler(range(9)), RandomSampler(range(9))):
        yield DrawnBatches(iter(compact_sampler(BatchSampler(sampler, 4, drop_last=False))))


def test_batches_are_lists_that_know_their_array():
    for batches in drawn_batches():
        for drawn in batches:
            assert isinstance(drawn.indices, list)
            assert drawn.indices == drawn.indices.array.tolist()
            assert type(pickle.loads(pickle.dumps(drawn.indices))) is list


def test_batches_are_arrays_alone_for_who_needs_no_lists():
    for batches in drawn_batches():
        batches.makes_lists = False
        indices = [drawn.indices for drawn in batches]
        assert [len(part) for part in indices] == [4, 4, 1]
        assert not any(isinstance(part, list) for part in indices)
        assert sorted(index for part in indices for index in part) == list(range(9))


@given(options=samplers, most=st.integers(1, 100), num_skipped=st.integers(0, 20))
def test_batches_can_be_had_uncut(options, most, num_skipped):
    options["batch"] = options["batch"] or (4, False)
    torch.manual_seed(3)
    sampler, _ = build(**options)
    each = DrawnBatches(iter(compact_sampler(sampler, num_skipped=num_skipped)))
    expected = [drawn.indices for drawn in each]

    torch.manual_seed(3)
    sampler, _ = build(**options)
    whole = DrawnBatches(iter(compact_sampler(sampler, num_skipped=num_skipped)))
    whole.makes_lists = False
    found = []
    while len((uncut := whole.take_uncut(most)).indices):
        first, indices, size = uncut
        assert first == len(found)
        assert len(indices) <= max(most, size)
        found += [
            indices[start : start + size].tolist() for start in range(0, len(indices), size)
        ]

    assert found == expected
    assert len(whole.take_uncut(most).indices) == 0
