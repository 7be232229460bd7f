"""A complete cache file is used where nothing can be written, by a user without rights."""

import multiprocessing
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fastloader.cache import PixelLayout, open_disk_cache
from fastloader.errors import SharedMemoryError

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(sys.platform == "win32", reason="users and rights of POSIX"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

NOBODY = 65534
NUM_IMAGES = 6
LAYOUT = PixelLayout(
    np.array([(1, 1, 1, 2, 3)] * NUM_IMAGES), [np.dtype(np.uint16)], np.zeros(6, np.uint8)
)
EDGES = np.array([0, 3, 6])


@pytest.fixture
def folder(monkeypatch):
    """Return a folder that everybody may enter."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


def open_cache(folder, content="test"):
    return open_disk_cache(folder / "a.pixels", content, LAYOUT, EDGES, lambda: None)


def fill(folder, positions=range(NUM_IMAGES)):
    open_cache(folder).require(positions, write_numbers)


def write_numbers(positions, write):
    for position in positions.tolist():
        write(int(LAYOUT.offsets[position]), np.full((1, 1, 1, 2, 3), position, np.uint16))


def forbid_writing(folder):
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)


def read(folder, content, connection):
    """Send the first pixel of each image, or what went wrong, as a user without rights."""
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    try:
        cache = open_cache(folder, content)
        cache.require(range(NUM_IMAGES), write_numbers)
        found = [int(cache.images.image(n).view(-1)[0]) for n in range(NUM_IMAGES)]
        connection.send((found, cache.fill(write_numbers, 1)))
    except SharedMemoryError as error:
        connection.send(str(error))


def read_without_rights(folder, content="test"):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=read, args=(folder, content, there))
    child.start()
    there.close()
    found = here.recv()
    child.join()
    return found


def test_a_complete_file_is_used(folder):
    fill(folder)
    forbid_writing(folder)

    assert read_without_rights(folder) == (list(range(NUM_IMAGES)), False)


def test_a_complete_file_of_another_user_is_used(folder):
    fill(folder)

    assert read_without_rights(folder) == (list(range(NUM_IMAGES)), False)


def test_a_complete_file_is_used_where_only_the_lock_is_missing(folder):
    fill(folder)
    (folder / "a.lock").unlink()
    forbid_writing(folder)

    assert read_without_rights(folder) == (list(range(NUM_IMAGES)), False)


def test_a_file_that_is_not_complete_is_an_error(folder):
    fill(folder, range(3))
    forbid_writing(folder)

    assert "was never finished" in read_without_rights(folder)


def test_a_file_of_something_else_is_an_error(folder):
    fill(folder)
    forbid_writing(folder)

    assert "cannot be made" in read_without_rights(folder, "another source")


def test_a_damaged_part_is_an_error(folder):
    fill(folder)
    path = folder / "a.pixels"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    forbid_writing(folder)

    assert "a part of it is damaged" in read_without_rights(folder)
