"""What the consumer and workers say to each other."""

import pytest

from fastloader.engine._messages import Task, decode_order, encode_order
from fastloader.shm._arena import SlotPlace
from tests.engine.test_remote_errors import FrozenError


def task_of(indices):
    return Task(
        run=3, number=7, indices=indices, epoch=1, base_seed=5, slot=SlotPlace(0, 4096, 0, 4096)
    )


def test_a_task_arrives_as_it_was():
    task = task_of([1, "two", (3, 4)])

    assert decode_order(encode_order(task)) == task


def test_an_index_that_cannot_be_pickled_is_an_error_that_names_it_and_says_what_to_do():
    with pytest.raises(TypeError, match="cannot pickle 'dict_keys'") as caught:
        encode_order(task_of([0, {1: 2}.keys()]))

    (note,) = caught.value.__notes__
    assert note.startswith("Batch 7 is of samples 0, dict_keys([1]): ")
    assert "num_workers=0" in note


def test_an_error_of_an_index_that_lets_nobody_set_an_attribute_is_noted_too():
    class Sealed:
        def __reduce__(self):
            raise FrozenError(7)

    with pytest.raises(FrozenError) as caught:
        encode_order(task_of([Sealed()]))

    (note,) = caught.value.__notes__
    assert note.startswith("Batch 7 is of ")
