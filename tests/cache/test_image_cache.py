"""A cache is filled once, by all processes together, and survives the death of any."""

import errno
import multiprocessing
import os
import signal
import tempfile
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader.cache import (
    PixelLayout,
    _disk_file,
    _open,
    choose_units,
    open_disk_cache,
    open_shared_cache,
)
from fastloader.cache._disk_file import open_disk_file
from fastloader.errors import ImageDataError, SharedMemoryError

NUM_IMAGES = 12
LAYOUT = PixelLayout(
    np.array([(1, 1, 1, 2, 3)] * NUM_IMAGES), [np.dtype(np.uint16)], np.zeros(12, np.uint8)
)
EDGES = np.array([0, 3, 4, 8, 12])


@pytest.fixture(autouse=True)
def _meeting_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def do_nothing(*_):
    pass


def open_cache(kind, folder):
    if kind == "shared":
        return open_shared_cache("test", LAYOUT, EDGES, do_nothing)
    return open_disk_cache(folder / "a.pixels", "test", LAYOUT, EDGES, do_nothing)


def pixels_of(image):
    return np.full((1, 1, 1, 2, 3), 1000 + image, np.uint16)


class Decoder:
    """Writes the right pixels, and remembers whose."""

    def __init__(self, pause_seconds=0.0):
        self.decoded = []
        self.pause_seconds = pause_seconds

    def __call__(self, positions, writer):
        for position in positions.tolist():
            time.sleep(self.pause_seconds)
            self.decoded.append(position)
            writer(int(LAYOUT.offsets[position]), pixels_of(position))


def check_pixels(cache, positions=range(NUM_IMAGES)):
    for position in positions:
        np.testing.assert_array_equal(pixels_of(position), cache.images.image(position))


both = pytest.mark.parametrize("kind", ["shared", "disk"])


@both
def test_filling_decodes_each_image_once_in_order(kind, tmp_path):
    cache, decoder, seen = open_cache(kind, tmp_path), Decoder(), []

    cache.fill_all(decoder, 12 * 12, seen.append)

    assert decoder.decoded == list(range(NUM_IMAGES))
    assert seen == [12]
    check_pixels(cache)


@both
def test_filling_goes_in_steps_of_whole_units(kind, tmp_path):
    cache, decoder, seen = open_cache(kind, tmp_path), Decoder(), []

    cache.fill_all(decoder, 4 * 12, seen.append)

    assert seen == [4, 8, 12]


@both
@settings(max_examples=20, deadline=None)
@given(requests=st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=5), max_size=6))
def test_images_are_there_when_required_and_no_unit_is_decoded_twice(
    kind, tmp_path_factory, requests
):
    folder = tmp_path_factory.mktemp("cache")
    tempfile.tempdir = str(folder)
    cache, decoder = open_cache(kind, folder), Decoder()

    for positions in requests:
        cache.require(positions, decoder)
        check_pixels(cache, positions)

    assert len(set(decoder.decoded)) == len(decoder.decoded)
    cache.fill_all(decoder, 1, do_nothing)
    check_pixels(cache)
    assert sorted(decoder.decoded) == list(range(NUM_IMAGES))


@both
def test_who_opens_it_next_finds_what_was_decoded(kind, tmp_path):
    first, second = open_cache(kind, tmp_path), open_cache(kind, tmp_path)

    first.fill_all(Decoder(), 1, do_nothing)

    second.require([0, 5], None)
    check_pixels(second)


def test_a_file_is_found_again_by_the_next_run_and_checked_once(tmp_path, monkeypatch):
    open_cache("disk", tmp_path).fill_all(Decoder(), 1, do_nothing)
    checked = []
    crc32 = __import__("zlib").crc32
    monkeypatch.setattr(
        "fastloader.cache._checksums.zlib.crc32",
        lambda content: checked.append(len(content)) or crc32(content),
    )

    cache = open_cache("disk", tmp_path)
    cache.fill_all(None, 1, do_nothing)
    assert not checked
    for _ in range(2):
        cache.require(range(NUM_IMAGES), None)

    check_pixels(cache)
    assert checked == [36, 12, 48, 48]


def test_what_is_there_is_told_of_the_file_that_was_opened_not_of_its_successor(
    tmp_path, monkeypatch
):
    path, successors = tmp_path / "a.pixels", []

    def open_and_lose(*arguments):
        file = open_disk_file(*arguments)
        monkeypatch.setattr(_open, "open_disk_file", open_disk_file)
        successors.append(open_disk_cache(path, "changed", LAYOUT, EDGES, do_nothing))
        successors[0].set_full()
        return file

    monkeypatch.setattr(_open, "open_disk_file", open_and_lose)

    cache = open_cache("disk", tmp_path)

    assert successors[0].num_ready == NUM_IMAGES
    assert cache.num_ready == 0


def test_a_damaged_unit_is_decoded_again(tmp_path):
    open_cache("disk", tmp_path).fill_all(Decoder(), 1, do_nothing)
    path = tmp_path / "a.pixels"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # of image 11, so of the last unit
    path.write_bytes(content)

    cache, decoder = open_cache("disk", tmp_path), Decoder()
    cache.require(range(NUM_IMAGES), decoder)

    check_pixels(cache)
    assert decoder.decoded == [8, 9, 10, 11]
    open_cache("disk", tmp_path).require(range(NUM_IMAGES), None)


@both
def test_an_error_is_raised_each_time_and_hides_nothing(kind, tmp_path):
    def fail(positions, writer):
        Decoder()(positions[:1], writer)
        raise ValueError("row 1 is broken")

    cache = open_cache(kind, tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match="row 1 is broken"):
            cache.require([2], fail)
    with pytest.raises(ValueError, match="row 1 is broken"):
        cache.fill_all(fail, 1, do_nothing)

    cache.require([2], Decoder())
    check_pixels(cache, [0, 1, 2])


@both
def test_a_damaged_image_is_an_error_for_who_requires_it_alone(kind, tmp_path):
    def fail_at_9(positions, writer):
        Decoder()(positions[positions < 9], writer)
        if 9 in positions:
            raise ImageDataError("row 9 is broken")
        Decoder()(positions[positions > 9], writer)

    cache = open_cache(kind, tmp_path)
    for _ in range(2):
        with pytest.raises(ImageDataError, match="row 9 is broken"):
            cache.require([0, 9, 11], fail_at_9)
        cache.require([8, 10, 11], fail_at_9)

    assert cache.num_ready == 6  # 0 to 2, 8, 10, 11
    check_pixels(cache, [0, 1, 2, 8, 10, 11])
    cache.fill_all(Decoder(), 1, do_nothing)
    check_pixels(cache)


@both
def test_who_needs_an_image_waits_for_it_alone(kind, tmp_path):
    cache, slow = open_cache(kind, tmp_path), Decoder(0.05)
    thread = threading.Thread(target=cache.fill_all, args=(slow, 1 << 20, do_nothing))
    thread.start()
    while not slow.decoded:
        time.sleep(0.001)

    cache.require([1], None)
    num_then = cache.num_ready
    thread.join()

    assert num_then < NUM_IMAGES
    check_pixels(cache)


def test_a_full_disk_is_told_and_what_is_there_stays(tmp_path, monkeypatch):
    """Also where no room could be taken when the file was made."""
    monkeypatch.setattr(_disk_file, "_reserve", do_nothing)
    cache = open_cache("disk", tmp_path)
    cache.require([0], Decoder())
    first_checksum, pwrite = 4096, os.pwrite

    def fill_up(descriptor, content, offset):
        if offset > first_checksum + 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, content, offset)

    for is_full_for_checksums in (False, True):
        decode = do_nothing if is_full_for_checksums else Decoder()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fill_up)
            with pytest.raises(SharedMemoryError, match=r"a\.pixels.*No space left.*make room"):
                cache.require([11], decode)

    check_pixels(cache, range(3))
    cache.require([11], Decoder())
    check_pixels(cache, range(8, 12))


@pytest.mark.parametrize("is_reserved", [True, False])
def test_nobody_writes_to_a_mapping_that_may_find_the_disk_full(
    tmp_path, monkeypatch, is_reserved
):
    if not is_reserved:
        monkeypatch.setattr(_disk_file, "_reserve", do_nothing)
    writers = []

    def decode(positions, writer):
        writers.append(writer)
        Decoder()(positions, writer)

    open_cache("disk", tmp_path).require([0], decode)

    assert [writer.has_room for writer in writers] == [is_reserved]


def fill_slowly(kind, folder, connection):
    tempfile.tempdir = str(folder)
    connection.send("ready")
    open_cache(kind, folder).fill_all(Decoder(0.02), 1, do_nothing)


@pytest.mark.multiprocess
@both
@pytest.mark.parametrize("num_before", [1, 5])
def test_a_kill_in_the_middle_of_filling_leaves_a_cache_that_can_be_filled(
    kind, tmp_path, num_before
):
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    here, there = context.Pipe()
    process = context.Process(target=fill_slowly, args=(kind, tmp_path, there))
    process.start()
    here.recv()
    cache, decoder = open_cache(kind, tmp_path), Decoder()
    deadline = time.monotonic() + 30
    while cache.num_ready < num_before and time.monotonic() < deadline:
        time.sleep(0.001)

    os.kill(process.pid, signal.SIGKILL)
    process.join()
    num_killed = cache.num_ready
    cache.fill_all(decoder, 1, do_nothing)

    assert num_before <= num_killed < NUM_IMAGES
    check_pixels(cache)
    assert num_killed + len(decoder.decoded) <= NUM_IMAGES + 4  # a unit is begun again


@pytest.mark.multiprocess
def test_a_new_run_goes_on_where_a_killed_one_stopped(tmp_path):
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    here, there = context.Pipe()
    process = context.Process(target=fill_slowly, args=("disk", tmp_path, there))
    process.start()
    here.recv()
    watched = open_cache("disk", tmp_path)
    while watched.num_ready < 5:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    del watched  # and with it what is known of which images are ready

    cache, decoder = open_cache("disk", tmp_path), Decoder()
    cache.fill_all(decoder, 1, do_nothing)
    cache.require(range(NUM_IMAGES), None)

    check_pixels(cache)
    assert min(decoder.decoded) == 4  # units 0 and 1 were finished


@pytest.mark.multiprocess
@both
def test_processes_that_inherited_nothing_share_the_work(kind, tmp_path):
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=fill_slowly, args=(kind, tmp_path, there))
    cache, decoder = open_cache(kind, tmp_path), Decoder(0.02)
    process.start()
    here.recv()

    cache.fill_all(decoder, 1, do_nothing)
    process.join(60)

    assert process.exitcode == 0
    check_pixels(cache)
    assert decoder.decoded


def test_units_are_some_megabytes_and_never_part_of_a_group():
    sizes = np.full(100, 1 << 20)

    assert np.diff(choose_units(sizes)).max() == 8
    groups = np.arange(100) // 30
    assert choose_units(sizes, groups).tolist() == [0, 30, 60, 90, 100]
    small = np.full(100, 1 << 10)
    assert choose_units(small, groups).tolist() == [0, 100]
    assert choose_units(sizes[:0]).tolist() == [0]


@given(st.lists(st.integers(1, 20 << 20), max_size=40), st.integers(1, 7))
def test_units_cover_all_images_once(sizes, group_size):
    groups = np.arange(len(sizes)) // group_size

    edges = choose_units(np.array(sizes, np.int64), groups)

    assert edges[0] == 0
    assert edges[-1] == len(sizes)
    assert (np.diff(edges) > 0).all()
    assert set(edges[:-1] % group_size) <= {0}
