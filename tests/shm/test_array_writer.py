"""Arrays written to memory of the process lie where they were put."""

import numpy as np

from fastloader.shm import ArrayWriter


def test_an_array_is_copied_to_its_position():
    block = np.zeros(40, np.uint8)

    ArrayWriter(block)(8, np.arange(6, dtype=np.uint16).reshape(2, 3))

    np.testing.assert_array_equal(np.arange(6), block[8:20].view(np.uint16))
    assert not block[:8].any()
    assert not block[20:].any()


def test_what_is_written_to_a_view_is_in_the_block():
    block = np.zeros(40, np.uint8)

    ArrayWriter(block).view(8, (2, 2), np.dtype(np.int32))[...] = [[1, 2], [3, 4]]

    np.testing.assert_array_equal([1, 2, 3, 4], block[8:24].view(np.int32))


def test_parts_are_of_the_block_one_after_another():
    block = np.zeros(24, np.uint8)

    for part in ArrayWriter(block).parts(8, 12):
        part[...] = 7

    assert block.tolist() == [0] * 8 + [7] * 12 + [0] * 4
