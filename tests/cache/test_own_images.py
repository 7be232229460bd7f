"""Images of one process, which others get when they need them, and never a second time."""

import copy
import gc
import multiprocessing
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fastloader.cache import (
    ImageCache,
    PixelLayout,
    find_own_images,
    load_own_images,
    open_shared_cache,
)
from fastloader.shm import collecting_memory_files, gives_huge_pages, providing_memory_files

pytestmark = pytest.mark.skipif(not gives_huge_pages(), reason="needs Linux with huge pages")

NUM_IMAGES = 12
LAYOUT = PixelLayout(
    np.array([(1, 1, 1, 200, 300)] * NUM_IMAGES), [np.dtype(np.uint16)], np.zeros(12, np.uint8)
)
EDGES = np.array([0, 3, 4, 8, 12])
WHOLE = LAYOUT.num_bytes


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"fastloader-{os.getuid()}"


def pixels_of(image):
    return np.full((1, 1, 1, 200, 300), 1000 + image, np.uint16)


def decode(write):
    for image in range(NUM_IMAGES):
        write(int(LAYOUT.offsets[image]), pixels_of(image))


def load():
    return load_own_images("test", LAYOUT, EDGES, decode)


def do_nothing(*_):
    pass


def open_file_cache():
    return open_shared_cache("test", LAYOUT, EDGES, do_nothing)


def decode_some(positions, writer):
    for position in positions.tolist():
        writer(int(LAYOUT.offsets[position]), pixels_of(position))


def check(cache):
    assert cache.num_ready == NUM_IMAGES
    for image in range(NUM_IMAGES):
        np.testing.assert_array_equal(pixels_of(image), cache.images.image(image))


def is_in_file(cache):
    """Return whether the pages of the pixels are those of a memory file."""
    address = cache.images.block.ctypes.data
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        start, stop = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < stop:
            return "memfd:fastloader" in line
    raise AssertionError(address)


def test_all_images_are_there_and_none_is_left_to_decode():
    own = load()

    check(own)
    own.require(range(NUM_IMAGES), None)
    assert not own.fill(None, 1)
    assert not is_in_file(own)
    assert copy.deepcopy(own) is own


def test_this_process_finds_them_for_as_long_as_somebody_has_them(folder):
    own = load()

    assert find_own_images("test", LAYOUT, EDGES) is own
    assert find_own_images("other", LAYOUT, EDGES) is None
    assert len(list(folder.glob("*.json"))) == 1
    del own
    gc.collect()

    assert find_own_images("test", LAYOUT, EDGES) is None
    assert not list(folder.glob("*.json"))


def test_images_that_could_not_be_decoded_leave_nothing(folder):
    def fail(write):
        write(0, pixels_of(0))
        raise OSError("torn")

    with pytest.raises(OSError, match="torn"):
        load_own_images("test", LAYOUT, EDGES, fail)
    gc.collect()

    assert find_own_images("test", LAYOUT, EDGES) is None
    assert not list(folder.glob("*.json"))


def test_whoever_finds_a_memory_file_holds_none_of_its_own():
    shared = open_file_cache()

    assert load() is None
    assert shared.num_ready == 0


def test_nobody_holds_what_it_cannot_tell_others_of(monkeypatch):
    monkeypatch.setattr("fastloader.cache._meeting._can_meet", lambda: False)

    assert load() is None


def test_sharing_moves_them_once_and_views_stay_valid():
    own = load()
    view = own.images.image(5)
    block = own.images.block

    shared = own.share()

    assert own.share() is shared
    assert is_in_file(own)
    assert own.images.block is block
    check(own)
    check(shared)
    np.testing.assert_array_equal(pixels_of(5), view)


def test_who_comes_after_they_were_shared_finds_them():
    own = load()
    own.share()

    found = open_file_cache()

    check(found)
    found.images.pixels.writer()(0, pixels_of(70))  # the same memory, not the same values
    np.testing.assert_array_equal(pixels_of(70), own.images.image(0))


def test_a_pickle_carries_the_memory_file():
    own = load()
    with collecting_memory_files() as files:
        content = pickle.dumps([own, own])

    with providing_memory_files(files):
        first, second = pickle.loads(content)

    assert first is second
    assert isinstance(first, ImageCache)
    check(first)
    assert len(content) < 10_000
    assert is_in_file(own)


def send_sum(cache, connection):
    connection.send(int(cache.images.block.view(np.uint16).sum(dtype=np.int64)))


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_children_have_them_however_they_start(method):
    own = load()
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=send_sum, args=(own, there))
    child.start()

    assert here.recv() == 60_000 * sum(1000 + image for image in range(NUM_IMAGES))
    child.join()
    assert is_in_file(own) is (method != "fork")


def hold_until_told(folder, connection):
    tempfile.tempdir = str(folder)
    own = load()
    connection.send(own is None)
    connection.recv()
    own.require([0], None)
    check(own)
    connection.send(is_in_file(own))
    connection.recv()


@pytest.fixture
def holder(tmp_path, monkeypatch):
    """The end of a pipe to another process that has the images in memory of its own."""
    monkeypatch.setattr("fastloader.cache._own_images._LOOK_SECONDS", 0.0)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=hold_until_told, args=(tmp_path, there))
    process.start()
    assert here.recv() is False
    yield here
    here.send("done")
    process.join()
    assert process.exitcode == 0


@pytest.mark.multiprocess
def test_the_first_takes_the_file_of_the_second_once_that_is_full(holder):
    assert load() is None
    second = open_file_cache()
    second.fill_all(decode_some, WHOLE, do_nothing)

    holder.send("look")

    assert holder.recv() is True


@pytest.mark.multiprocess
def test_the_first_keeps_its_own_while_the_second_still_decodes(holder):
    second = open_file_cache()
    second.fill(decode_some, 1)

    holder.send("look")

    assert holder.recv() is False
    assert second.num_ready == 3


def test_sharing_what_another_process_began_finishes_it():
    own = load()
    other = open_file_cache()  # as another process would: it looks for notes, not in here
    other.fill(decode_some, 1)

    check(own.share())

    check(other)


@pytest.mark.multiprocess
def test_a_forked_child_shares_by_itself_and_the_parent_follows(monkeypatch):
    monkeypatch.setattr("fastloader.cache._own_images._LOOK_SECONDS", 0.0)
    own = load()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def share_and_wait():
        own.share()
        there.send(is_in_file(own))
        there.recv()

    child = context.Process(target=share_and_wait)
    child.start()
    assert here.recv() is True
    assert not is_in_file(own)

    own.require([0], None)

    assert is_in_file(own)
    check(own)
    here.send("done")
    child.join()
