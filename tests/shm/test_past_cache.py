"""Bytes that are copied past the cache are the same, and no others are touched."""

import ctypes
import platform
from types import SimpleNamespace

import pytest
import torch

from fastloader.shm._past_cache import PastCache, past_cache

is_known = platform.machine() == "x86_64" and platform.system() == "Linux"


@pytest.fixture
def anew():
    past_cache.cache_clear()
    yield
    past_cache.cache_clear()


@pytest.mark.skipif(not is_known, reason="there are no instructions for this processor")
@pytest.mark.parametrize("row_bytes", [64, 128, 4096, 65_600])
@pytest.mark.parametrize("shift", [0, 1, 7, 16, 33])
def test_rows_arrive_one_after_the_other_from_any_address(row_bytes, shift):
    data = torch.randint(0, 256, (10 * row_bytes + shift,), dtype=torch.uint8)
    rows = data[shift:].view(10, row_bytes)
    chosen = [3, 0, 9, 9, 5]
    whole = torch.full((7, row_bytes), 77, dtype=torch.uint8)
    target = whole[1:6]

    past_cache().copy_rows(
        [rows[number].data_ptr() for number in chosen], row_bytes, target.data_ptr()
    )

    assert torch.equal(target, rows[chosen])
    assert (whole[[0, 6]] == 77).all()


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "target", "expected"),
    [
        (128, 602_112, 4096, True),
        (128, 602_112, 4096 + 8, False),
        (128, 602_113, 4096, False),
        (2, 602_112, 4096, False),
        (10_000, 3_072, 4096, False),
    ],
    ids=["large", "unaligned", "parts of a line", "few", "small"],
)
def test_only_large_whole_lines_are_copied_that_way(num_rows, row_bytes, target, expected):
    assert PastCache.suits(num_rows, row_bytes, target) is expected


@pytest.mark.parametrize("machine", ["aarch64", "i686"])
def test_other_processors_have_none(anew, monkeypatch, machine):
    monkeypatch.setattr(platform, "machine", lambda: machine)

    assert past_cache() is None


def test_a_system_that_runs_no_memory_has_none(anew, monkeypatch):
    def refuse(*_arguments):
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(mprotect=refuse))

    assert past_cache() is None
