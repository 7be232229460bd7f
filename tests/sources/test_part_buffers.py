"""Buffers of parts are lent to children and used again."""

import os

import pytest

from fastloader.sources._number_pipe import NumberPipe
from fastloader.sources._part_buffers import PartBuffers


def test_each_number_is_taken_once_and_then_there_is_an_end():
    with NumberPipe.of([3, 1, 2]).end() as pipe:
        taken = [pipe.take() for _ in range(4)]

    assert taken == [3, 1, 2, None]


def test_more_numbers_than_a_pipe_takes_at_once_are_refused():
    with pytest.raises(ValueError, match="takes 8192 numbers, but got 8193"):
        NumberPipe.of(range(8193))


def test_a_buffer_is_free_again_when_it_was_given_back(no_leaks):
    with PartBuffers.create(2, 100) as buffers:
        taken = [buffers.take(1), buffers.take(1)]

        assert sorted(taken) == [0, 1]
        assert buffers.take(0) is None
        buffers.give_back(1)
        assert buffers.take(1) == 1


def test_what_a_child_makes_is_seen_by_its_parent(no_leaks):
    with PartBuffers.create(2, 100) as buffers:
        inherited = PartBuffers.inherited(
            [os.dup(descriptor) for descriptor in buffers.descriptors], 100
        )
        with inherited:
            inherited.view(1)[:] = 7

        assert set(buffers.view(0)) == {0}
        assert set(buffers.view(1)) == {7}


def test_nobody_waits_for_a_buffer_of_a_parent_that_is_gone():
    buffers = PartBuffers.create(1, 100)
    inherited = PartBuffers.inherited(
        [os.dup(descriptor) for descriptor in buffers.descriptors], 100
    )
    assert inherited.take(1) == 0
    buffers.__exit__()

    with inherited, pytest.raises(EOFError):
        inherited.take(10)
