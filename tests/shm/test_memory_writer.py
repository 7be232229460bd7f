"""Arrays written to a memory file lie where they were put."""

import numpy as np
import pytest

from fastloader.shm import MemoryFile, MemoryWriter


@pytest.mark.parametrize("start_bytes", [0, 24])
def test_an_array_is_copied_to_its_position(start_bytes):
    with MemoryFile.create(64) as file:
        writer = MemoryWriter(file, start_bytes)

        writer(8, np.arange(6, dtype=np.uint16).reshape(2, 3))

        content = np.frombuffer(file.map(), np.uint16)[(start_bytes + 8) // 2 :][:6]
        np.testing.assert_array_equal(np.arange(6), content)


def test_what_is_written_to_a_view_is_in_the_file():
    with MemoryFile.create(64) as file:
        writer = MemoryWriter(file, 16)

        writer.view(8, (2, 2), np.dtype(np.int32))[...] = [[1, 2], [3, 4]]

        np.testing.assert_array_equal([1, 2, 3, 4], np.frombuffer(file.map(), np.int32)[6:10])
