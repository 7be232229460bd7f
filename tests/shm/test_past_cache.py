"""Bytes that are copied past the cache are the same, and no others are touched."""

from types import ModuleType

import numpy as np
import pytest
import torch

from fastloader.shm import _past_cache
from fastloader.shm._past_cache import PastCache, past_cache


@pytest.fixture
def anew():
    past_cache.cache_clear()
    yield
    past_cache.cache_clear()


@pytest.fixture
def compiled():
    module = pytest.importorskip("fastloader.shm._streaming", reason="was not compiled")
    if not hasattr(module, "copy_rows"):
        pytest.skip("was compiled for a processor without such stores")
    return module


@pytest.mark.parametrize("row_bytes", [64, 128, 192, 256, 320, 576, 4096, 65_600])
@pytest.mark.parametrize("shift", [0, 1, 7, 16, 33])
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_rows_arrive_one_after_the_other_from_any_address(
    compiled, row_bytes, shift, num_threads
):
    data = torch.randint(0, 256, (10 * row_bytes + shift,), dtype=torch.uint8)
    rows = data[shift:].view(10, row_bytes)
    chosen = [3, 0, 9, 9, 5]
    whole = torch.full((7, row_bytes), 77, dtype=torch.uint8)
    target = whole[1:6]

    PastCache(compiled.copy_rows).copy_rows(
        [rows[number].data_ptr() for number in chosen],
        row_bytes,
        target.data_ptr(),
        num_threads,
    )

    assert torch.equal(target, rows[chosen])
    assert (whole[[0, 6]] == 77).all()


def test_a_single_row_is_copied_as_any_other(compiled):
    row = torch.randint(0, 256, (65_600,), dtype=torch.uint8)
    whole = torch.full((3, 65_600), 77, dtype=torch.uint8)

    PastCache(compiled.copy_rows).copy_row(row.data_ptr(), 65_600, whole[1].data_ptr())

    assert torch.equal(whole[1], row)
    assert (whole[[0, 2]] == 77).all()


@pytest.mark.parametrize(
    ("source_bytes", "row_bytes", "shift"),
    [(7, 64, 0), (8, 63, 0), (8, 0, 0), (8, -64, 0), (8, 64, 8)],
    ids=["half an address", "parts of a line", "nothing", "less than nothing", "unaligned"],
)
def test_what_does_not_fit_is_refused(compiled, source_bytes, row_bytes, shift):
    target = np.zeros(256, np.uint8)
    aligned = -(-target.ctypes.data // 16) * 16

    with pytest.raises(ValueError, match="whole lines"):
        compiled.copy_rows(bytes(source_bytes), row_bytes, aligned + shift)


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


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "expected"),
    [(512, 16_384, True), (511, 16_384, False), (1024, 16_320, False)],
    ids=["enough", "few", "small"],
)
def test_fewer_and_smaller_rows_are_gathered_that_way(num_rows, row_bytes, expected):
    assert PastCache.suits(num_rows, row_bytes, 4096, is_gathered=True) is expected
    assert not PastCache.suits(num_rows, row_bytes, 4096)


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_addresses_may_begin_anywhere(compiled, shift):
    row = torch.randint(0, 256, (64,), dtype=torch.uint8)
    target = np.zeros(64 + 16, np.uint8)
    start = -target.ctypes.data % 16
    address = bytes(shift) + np.uint64(row.data_ptr()).tobytes()

    compiled.copy_rows(memoryview(address)[shift:], 64, target.ctypes.data + start)

    assert target[start : start + 64].tolist() == row.tolist()


@pytest.mark.parametrize("module", [None, ModuleType("_streaming")], ids=["none", "no stores"])
def test_there_is_none_where_it_is_not_to_be_used(anew, monkeypatch, module):
    monkeypatch.setattr(_past_cache, "extension_module", lambda _name: module)

    assert past_cache() is None
