"""Bytes that are copied past the cache are the same, and no others are touched."""

from types import SimpleNamespace

import pytest
import torch

from fastloader.shm import _past_cache
from fastloader.shm._past_cache import knows_past_cache, may_go_past_cache
from fastloader.threads._crew import copy_rows, rows_at


@pytest.fixture
def anew():
    knows_past_cache.cache_clear()
    yield
    knows_past_cache.cache_clear()


needs_stores = pytest.mark.skipif(
    not knows_past_cache(), reason="was not compiled, or for a processor without such stores"
)


@needs_stores
@pytest.mark.parametrize("row_bytes", [64, 128, 192, 256, 320, 576, 4096, 65_600])
@pytest.mark.parametrize("shift", [0, 1, 7, 16, 33])
@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_rows_arrive_one_after_the_other_from_any_address(row_bytes, shift, num_threads):
    data = torch.randint(0, 256, (10 * row_bytes + shift,), dtype=torch.uint8)
    rows = data[shift:].view(10, row_bytes)
    chosen = [3, 0, 9, 9, 5]
    whole = torch.full((7, row_bytes), 77, dtype=torch.uint8)
    target = whole[1:6]

    addresses = [rows[number].data_ptr() for number in chosen]
    copy_rows(rows_at(addresses, row_bytes, target.data_ptr(), is_past_cache=True), num_threads)

    assert torch.equal(target, rows[chosen])
    assert (whole[[0, 6]] == 77).all()


@needs_stores
def test_a_single_row_is_copied_as_any_other():
    row = torch.randint(0, 256, (65_600,), dtype=torch.uint8)
    whole = torch.full((3, 65_600), 77, dtype=torch.uint8)

    copy_rows(rows_at([row.data_ptr()], 65_600, whole[1].data_ptr(), is_past_cache=True), 1)

    assert torch.equal(whole[1], row)
    assert (whole[[0, 2]] == 77).all()


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "target", "expected"),
    [
        (128, 602_112, 4096, True),
        (128, 602_112, 4096 + 8, False),
        (128, 602_113, 4096, False),
        (27, 602_112, 4096, False),
        (28, 602_112, 4096, True),
        (10_000, 3_072, 4096, False),
    ],
    ids=["large", "unaligned", "parts of a line", "few", "enough", "small"],
)
def test_only_large_whole_lines_are_copied_that_way(
    monkeypatch, num_rows, row_bytes, target, expected
):
    monkeypatch.setattr(_past_cache, "knows_past_cache", lambda: True)

    assert may_go_past_cache(num_rows, row_bytes, target) is expected


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "expected"),
    [(512, 16_384, True), (511, 16_384, False), (1024, 16_320, False)],
    ids=["enough", "few", "small"],
)
def test_fewer_and_smaller_rows_are_gathered_that_way(
    monkeypatch, num_rows, row_bytes, expected
):
    monkeypatch.setattr(_past_cache, "knows_past_cache", lambda: True)

    assert may_go_past_cache(num_rows, row_bytes, 4096, is_gathered=True) is expected
    assert not may_go_past_cache(num_rows, row_bytes, 4096)


@pytest.mark.parametrize(
    "team", [None, SimpleNamespace(KNOWS_PAST_CACHE=0)], ids=["not compiled", "no stores"]
)
def test_nothing_goes_past_the_cache_where_no_code_can(anew, monkeypatch, team):
    monkeypatch.setattr(_past_cache, "row_team", lambda: team)

    assert not may_go_past_cache(128, 602_112, 4096)
