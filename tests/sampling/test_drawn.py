"""Batches of an order taken one by one or many at once are the same, here and on a device."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, SequentialSampler

from fastloader.sampling._compact import IndexArray, compact_sampler
from fastloader.sampling._drawn import DrawnBatches, Stretch
from fastloader.sampling._uploaded import (
    UploadedIndices,
    UploadedOrder,
    _Upload,
    join_uploaded,
)


class Stateful:
    def __init__(self):
        self.count = 0

    def state_dict(self):
        self.count += 1
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


KINDS = {
    "plain": dict,
    "in the middle": lambda: {"first_number": 3, "done": frozenset({4})},
    "with a state": lambda: {"sampler": Stateful()},
}


def drawn_batches(options):
    drawn = DrawnBatches(iter([[1, 2], [3], [4, 5], [6]]), **options)
    drawn.makes_lists = False
    return drawn


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_taking_many_is_taking_each(options):
    many, each = drawn_batches(options()), drawn_batches(options())

    taken = many.take(1) + many.take(2) + many.take(9)

    assert list(each) == taken
    assert each.final_state == many.final_state


class Streams:
    """Tells which stream is current."""

    current = 1

    def __call__(self):
        return self.current


def uploaded(streams, numbers, edges):
    array = np.array(numbers)
    upload = _Upload(array, torch.device("cpu"), streams)
    upload.note_copy(torch.from_numpy(array.copy()))
    return [UploadedIndices(upload, start, stop) for start, stop in pairwise(edges)]


def test_batches_that_follow_one_another_are_joined_without_a_copy():
    parts = uploaded(Streams(), [5, 3, 8, 1], [0, 1, 3, 4])

    joined = join_uploaded(parts[1:])

    assert joined.array.tolist() == [3, 8, 1]
    assert joined.on_device().data_ptr() == parts[1].on_device().data_ptr()


def test_batches_that_do_not_follow_one_another_are_not_joined():
    streams = Streams()
    parts = uploaded(streams, [5, 3, 8, 1], [0, 1, 3, 4])
    others = uploaded(streams, [5, 3, 8, 1], [0, 1, 3, 4])

    assert join_uploaded([parts[0], parts[2]]) is None
    assert join_uploaded([parts[0], others[1]]) is None
    assert join_uploaded([parts[0], IndexArray(np.array([3]))]) is None


def test_indices_are_good_on_the_stream_that_copied_them_alone():
    streams = Streams()
    [indices] = uploaded(streams, [2, 0], [0, 2])
    table = np.array([10, 11, 12])

    here = indices.mapped(table, torch.from_numpy(table))
    streams.current = 2
    elsewhere = indices.mapped(table, torch.from_numpy(table))

    assert indices.on_device() is None
    assert [here.array.tolist(), elsewhere.array.tolist()] == [[12, 10]] * 2
    assert type(elsewhere) is IndexArray
    streams.current = 1
    assert here.on_device().tolist() == [12, 10]


def test_indices_are_copied_when_they_are_first_asked_for_on_the_device(unpinned):
    streams = Streams()
    array = np.array([5, 3])
    upload = _Upload(array, torch.device("cpu"), streams)
    parts = [UploadedIndices(upload, 0, 1), UploadedIndices(upload, 1, 2)]
    array[:] = [8, 1]
    streams.current = 2

    assert [part.on_device().tolist() for part in parts] == [[8], [1]]
    array[:] = [0, 0]
    assert parts[0].on_device().tolist() == [8]
    streams.current = 1
    assert parts[0].on_device() is None


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_an_uploaded_order_is_the_order(unpinned, options, most):
    read = BatchSampler(SequentialSampler(range(11)), 3, drop_last=False)
    make = partial(DrawnBatches, iter(compact_sampler(read)), **options())
    expected = list(make())
    order = UploadedOrder(
        DrawnBatches(iter(compact_sampler(read)), **options()), torch.device("cpu")
    )

    found = []
    while length := order.next_length():
        taken = order.take(most)
        assert len(taken) <= most
        assert len(taken[0].indices) == length
        found += taken
    assert not order.take(most)

    assert found == expected
    assert all(type(drawn.indices) is UploadedIndices for drawn in found)
    assert all(
        drawn.indices.on_device().tolist() == list(drawn.indices) == list(drawn.indices.array)
        for drawn in found
    )


@pytest.mark.parametrize("num_samples", [1, 3, 4, 10, 12])
def test_a_stretch_tells_of_its_batches_what_they_tell_themselves(num_samples):
    stretch = Stretch(7, IndexArray(np.arange(num_samples)), 4)

    batches = [drawn.indices.array for drawn in stretch]

    assert stretch.lengths().tolist() == [len(batch) for batch in batches]
    assert [row.tolist() for row in stretch.rows()] == [batch.tolist() for batch in batches]
    assert list(stretch.numbers) == [drawn.number for drawn in stretch]
