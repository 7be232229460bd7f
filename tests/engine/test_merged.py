"""Small batches are made several at once, and nobody can tell."""

from collections import deque
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from fastloader.datasets import Augment, DatasetWrapper
from fastloader.datasets._batched import as_batched, has_independent_rows
from fastloader.engine import MergedRun, RowBytes, UncutDeliveries
from fastloader.engine._fetch import AllSkippedError
from fastloader.engine._merged import MERGED_BYTES, MOST_MERGED
from fastloader.sampling._compact import IndexList, compact_sampler
from fastloader.sampling._drawn import DrawnBatches, Stretch
from fastloader.sampling._uploaded import UploadedOrder
from fastloader.stages import CutStream
from fastloader.transforms import RandomFlip
from tests.equality import assert_same


class Maker:
    """Makes batches of numbers, and counts how."""

    def __init__(self, make, most_bytes=MERGED_BYTES, first_bytes=MERGED_BYTES):
        self._make = make
        self.most_bytes = most_bytes
        self.first_bytes = first_bytes
        self.sizes = []
        self.is_closed = False

    def make(self, indices, number):
        self.sizes.append(len(indices))
        return self._make(list(indices))

    def close(self):
        self.is_closed = True


def run_of(maker, order, deliveries=None):
    return MergedRun(
        maker, DrawnBatches(iter(order)), deque() if deliveries is None else deliveries
    )


def taken_from(stream):
    batches = []
    while True:
        try:
            batches.append(next(stream))
        except StopIteration:
            stream.close()
            return batches


def all_of(maker, order):
    return taken_from(CutStream(run_of(maker, order)))


def in_fives(count):
    return [list(range(5 * number, 5 * number + 5)) for number in range(count)]


def test_batches_come_one_by_one_and_in_order():
    maker = Maker(lambda indices: [torch.tensor(indices), {"twice": torch.tensor(indices) * 2}])

    order = [*in_fives(3 * MOST_MERGED), [7]]

    batches = all_of(maker, order)

    assert [batch[0].tolist() for batch in batches] == order
    assert all(torch.equal(batch[1]["twice"], batch[0] * 2) for batch in batches)
    assert max(maker.sizes) == 5 * MOST_MERGED
    assert maker.is_closed


def test_large_batches_are_made_alone():
    maker = Maker(
        lambda indices: torch.empty(len(indices), MERGED_BYTES // 5 + 1, dtype=torch.uint8)
    )

    all_of(maker, in_fives(3))

    assert maker.sizes == [5, 5, 5]


def test_merged_batches_stay_below_their_bound():
    rows = MERGED_BYTES // 5 // 4  # four batches
    maker = Maker(lambda indices: torch.empty(len(indices), rows, dtype=torch.uint8))

    all_of(maker, in_fives(9))

    assert maker.sizes == [5, 20, 20]


def test_more_are_made_at_once_by_and_by_where_the_device_has_room():
    rows = MERGED_BYTES // 5 // 2  # two batches
    maker = Maker(
        lambda indices: torch.empty((1, 1), dtype=torch.uint8).expand(len(indices), rows),
        most_bytes=10 * MERGED_BYTES,
    )

    all_of(maker, in_fives(60))

    assert [size // 5 for size in maker.sizes] == [1, 2, 4, 8, 16, 20, 9]


def test_what_is_made_at_once_is_as_much_as_may_be_from_the_second_call_on():
    maker = Maker(
        lambda indices: torch.empty(len(indices), MERGED_BYTES // 10, dtype=torch.uint8),
        most_bytes=5 * MERGED_BYTES,
        first_bytes=5 * MERGED_BYTES,
    )

    all_of(maker, in_fives(25))

    assert maker.sizes == [5, 50, 50, 20]


@pytest.mark.parametrize("arrays", [True, False])
def test_indices_are_joined_as_they_are_given(arrays):
    order = in_fives(9)
    seen = []
    maker = Maker(torch.tensor)
    make = maker.make
    maker.make = lambda indices, number: seen.append(indices) or make(indices, number)

    all_of(maker, [IndexList(np.array(i)) for i in order] if arrays else order)

    assert hasattr(seen[-1], "array") == arrays
    assert list(seen[-1]) == list(range(5, 45))


def test_batches_that_cannot_be_cut_are_made_alone():
    maker = Maker(lambda indices: [str(index) for index in indices])

    assert all_of(maker, in_fives(9)) == [list(map(str, batch)) for batch in in_fives(9)]
    assert set(maker.sizes) == {5}


def test_an_error_comes_at_its_batch_and_the_rest_after_it():
    def make(indices):
        if 23 in indices:
            raise KeyError("bad")
        return torch.tensor(indices)

    stream = CutStream(run_of(Maker(make), in_fives(9)))

    good = [next(stream).tolist() for _ in range(4)]
    with pytest.raises(KeyError, match="bad"):
        next(stream)
    good += [next(stream).tolist() for _ in range(4)]

    assert good == [*in_fives(4), *in_fives(9)[5:]]


def test_a_batch_without_samples_is_left_out():
    def make(indices):
        if 23 in indices:
            raise AllSkippedError
        return torch.tensor(indices)

    batches = all_of(Maker(make), in_fives(9))

    assert [b.tolist() for b in batches] == [*in_fives(4), *in_fives(9)[5:]]


class Paddable(torch.utils.data.Dataset):
    """A dataset of the user's own: a batch is as wide as its widest sample."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return torch.zeros(index)

    def get_batch(self, indices):
        return torch.zeros(len(indices), max(indices))


class Centred(DatasetWrapper):
    def transform_images(self, images, indices):
        return images - images.mean()


TENSORS = TensorDataset(torch.rand(9, 2, 3, 3), torch.arange(9))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (TENSORS, True),
        (Subset(TENSORS, [3, 4]), True),
        (Augment(TENSORS, RandomFlip()), True),
        (Paddable(), False),
        (Subset(Paddable(), [3, 4]), False),
        (Centred(TENSORS), False),
        (Augment(Centred(TENSORS), RandomFlip()), False),
    ],
    ids=["tensors", "subset", "augmented", "own", "subset of own", "own wrapper", "around it"],
)
def test_only_rows_known_to_be_independent_are_merged(dataset, expected):
    assert has_independent_rows(as_batched(dataset)) is expected


def test_a_merged_batch_equals_the_batches_of_the_dataset():
    batched = as_batched(Subset(TENSORS, list(range(8, -1, -1))))

    batches = all_of(Maker(batched.get_batch), [[0, 1, 2], [3, 8], [5]])

    for batch, indices in zip(batches, [[8, 7, 6], [5, 0], [3]], strict=True):
        assert_same(default_collate([TENSORS[index] for index in indices]), batch)


def test_each_batch_is_told_of_though_many_are_made_at_once():
    deliveries = deque()
    stream = CutStream(run_of(Maker(torch.tensor), in_fives(9), deliveries))

    [next(stream) for _ in range(9)]

    assert [delivery.number for delivery in deliveries] == list(range(9))
    assert all(delivery.has_batch for delivery in deliveries)


def uploaded(batch_size, length):
    """Return an order of numbers that are copied to a device, which is the CPU."""
    batches = BatchSampler(SequentialSampler(range(length)), batch_size, drop_last=False)
    return UploadedOrder(DrawnBatches(iter(compact_sampler(batches))), torch.device("cpu"))


@pytest.mark.parametrize("number", range(3))
def test_the_first_call_of_a_later_pass_makes_as_much_as_one_may(unpinned, number):
    row_bytes, sizes = RowBytes(), []
    for batch_size in (5, 5, 50, 200)[: number + 2]:
        maker = Maker(torch.tensor, 100 * 8, 100 * 8)
        deliveries = deque()
        run = MergedRun(maker, uploaded(batch_size, 420), deliveries, row_bytes)
        stream = CutStream(run)
        batches = [batch.tolist() for batch in taken_from(stream)]

        assert list(chain.from_iterable(batches)) == list(range(420))
        assert [delivery.number for delivery in deliveries] == list(range(len(batches)))
        assert [list(delivery.indices) for delivery in deliveries] == batches
        assert {len(batch) for batch in batches[:-1]} == {batch_size}
        sizes.append(maker.sizes)

    expected = [[5, 100, 100, 100, 100, 15], [100, 100, 100, 100, 20]]
    assert sizes == [*expected, expected[1], [200, 200, 20]][: number + 2]


def test_batches_in_one_piece_that_cannot_be_made_together_are_made_singly(unpinned):
    def refuse(indices):
        if len(indices) > 5 or 12 in indices:
            raise ValueError(len(indices))
        return torch.tensor(indices)

    row_bytes, deliveries = RowBytes(), deque()
    row_bytes.latest = 8
    stream = CutStream(MergedRun(Maker(refuse), uploaded(5, 22), deliveries, row_bytes))
    found = [next(stream).tolist() for _ in range(2)]
    with pytest.raises(ValueError, match="5"):
        next(stream)
    found += [batch.tolist() for batch in taken_from(stream)]

    assert found == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [15, 16, 17, 18, 19], [20, 21]]
    assert [delivery.has_batch for delivery in deliveries] == [True, True, False, True, True]


def test_batches_in_one_piece_are_told_of_in_one_where_nobody_looks_at_each(unpinned):
    deliveries = UncutDeliveries()
    run = MergedRun(Maker(torch.tensor, 100 * 8, 100 * 8), uploaded(5, 42), deliveries)

    stream = CutStream(run)
    batches = [next(stream) for _ in range(9)]

    told = [(one.number, list(one.indices.indices), one.has_batch) for one in deliveries]
    assert told == [(0, list(range(5)), True), (1, list(range(5, 42)), True)]
    assert [len(one.indices) for one in deliveries] == [1, 8]
    assert torch.cat(batches).tolist() == list(range(42))


def test_a_batch_that_cannot_be_made_is_told_of_alone(unpinned):
    def refuse(indices):
        if 7 in indices:
            raise ValueError("no seven")
        return torch.tensor(list(indices))

    deliveries = UncutDeliveries()
    stream = CutStream(MergedRun(Maker(refuse), uploaded(5, 15), deliveries))
    next(stream)
    with pytest.raises(ValueError, match="seven"):
        next(stream)
    next(stream)

    told = [(one.number, isinstance(one.indices, Stretch), one.has_batch) for one in deliveries]
    assert told == [(0, True, True), (1, False, False), (2, False, True)]
