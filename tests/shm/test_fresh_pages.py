"""Huge pages of fresh memory are asked for at their end, once, before they are written."""

import itertools
import mmap

import numpy as np
import pytest

from fastloader.machine._huge_pages import HUGE_BYTES
from fastloader.shm import ArrayWriter, PrivateBlock, gives_huge_pages
from fastloader.shm import _fresh_pages as module
from fastloader.shm._fresh_pages import FreshPages

PAGE = mmap.PAGESIZE


@pytest.fixture
def asked(monkeypatch):
    """What the system was asked for: addresses."""
    addresses = []
    monkeypatch.setattr(module, "advise", lambda *call: addresses.append(call[0]))
    return addresses


@pytest.fixture
def block():
    """Three huge pages, and less than one before and after them."""
    memory = np.zeros(6 * HUGE_BYTES, np.uint8)
    start = -memory.ctypes.data % HUGE_BYTES + HUGE_BYTES - 1000
    return memory[start : start + 1000 + 3 * HUGE_BYTES + 77]


def test_each_whole_page_is_asked_for_at_its_end_before_its_part(asked, block):
    first = block.ctypes.data + 1000
    pages = FreshPages(block)

    seen = [(part, len(asked)) for part in pages.parts(0, len(block))]

    edges = [0, *(1000 + number * HUGE_BYTES for number in range(4)), len(block)]
    assert list(itertools.pairwise(edges)) == [part for part, _ in seen]
    assert [count for _, count in seen] == [0, 1, 2, 3, 3]
    assert [first + number * HUGE_BYTES - PAGE for number in (1, 2, 3)] == asked


def test_a_page_is_asked_for_once(asked, block):
    pages = FreshPages(block)

    list(pages.parts(1000 + HUGE_BYTES, 1000 + HUGE_BYTES + 10))
    list(pages.parts(1000 + HUGE_BYTES + 10, 1000 + 2 * HUGE_BYTES))

    assert [block.ctypes.data + 1000 + 2 * HUGE_BYTES - PAGE] == asked


def test_a_small_block_asks_for_nothing(asked):
    within_a_page = np.frombuffer(mmap.mmap(-1, PAGE), np.uint8)[:1000]  # of any size
    pages = FreshPages(within_a_page)

    assert list(pages.parts(10, 1000)) == [(10, 1000)]
    assert asked == []
    assert list(FreshPages(np.zeros(0, np.uint8)).parts(0, 0)) == []


@pytest.mark.skipif(not gives_huge_pages(), reason="needs Linux with huge pages")
def test_what_was_written_stays_whatever_the_order():
    size = 2 * HUGE_BYTES + 4097
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    block = PrivateBlock(size).view()
    write = ArrayWriter(block)

    for start in np.random.default_rng(1).permutation(np.arange(0, size, 300_001)).tolist():
        write(start, content[start : start + 300_001])

    np.testing.assert_array_equal(content, block)


def test_a_view_takes_the_pages_that_it_is_of(asked, block):
    part = ArrayWriter(block).view(1000, (HUGE_BYTES,), np.dtype(np.uint8))

    assert part.ctypes.data == block.ctypes.data + 1000
    assert [part.ctypes.data + HUGE_BYTES - PAGE] == asked
