"""Arrays over mapped files reach workers as the name of the file."""

import numpy as np
import pytest

from fastloader.pickling._mapped_arrays import reduce_mapped
from fastloader.pickling._pickling import dumps_for_worker, loads_from_parent


@pytest.fixture
def path(tmp_path):
    np.arange(60_000, dtype=np.int32).reshape(300, 200).tofile(tmp_path / "data.bin")
    return tmp_path / "data.bin"


def mapped(path, mode="r"):
    return np.memmap(path, np.int32, mode, offset=0, shape=(300, 200))


VIEWS = {
    "whole": lambda array: array,
    "rows": lambda array: array[100:],
    "columns": lambda array: array[:, 3:90:2],
    "turned": lambda array: array.T,
    "plain": np.asarray,
    "plain rows": lambda array: np.asarray(array)[7:9],
    "one": lambda array: array[5:6, 7],
}


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_of_a_mapped_file_is_mapped_again(path, view, mode):
    array = view(mapped(path, mode))
    buffers = []

    data = dumps_for_worker(array, buffers=buffers)
    found = loads_from_parent(data, buffers=buffers)

    assert type(found) is type(array)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)
    assert found.flags.writeable == array.flags.writeable
    assert not buffers
    assert len(data) < 1000


def test_what_one_writes_the_other_reads(path):
    array = mapped(path, "r+")
    found = loads_from_parent(dumps_for_worker(array[1:]))

    array[1, 0] = -5

    assert found[0, 0] == -5


def test_a_file_with_a_header_is_mapped_at_its_data(tmp_path):
    np.save(tmp_path / "data.npy", np.arange(5000.0))
    array = np.load(tmp_path / "data.npy", mmap_mode="r")

    found = loads_from_parent(dumps_for_worker(array[17:]))

    assert np.array_equal(found, array[17:])


def test_changes_that_no_file_has_travel_by_value(path):
    array = mapped(path, "c")
    array[0, 0] = -1

    assert loads_from_parent(dumps_for_worker(array))[0, 0] == -1


def test_a_file_that_was_replaced_travels_by_value(path):
    array = mapped(path)
    expected = array.copy()
    path.with_suffix(".new").write_bytes(bytes(240_000))
    path.with_suffix(".new").rename(path)

    assert np.array_equal(loads_from_parent(dumps_for_worker(array)), expected)


@pytest.mark.parametrize(
    "array",
    [np.zeros(5), np.zeros(0), np.zeros(8)[::-1], np.array([None])],
    ids=["own", "empty", "backward", "objects"],
)
def test_arrays_with_memory_of_their_own_are_left_to_pickle(array):
    assert reduce_mapped(array) is NotImplemented
