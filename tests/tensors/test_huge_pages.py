"""Small rows in memory are moved to huge pages, and it makes no difference but to the time."""

import multiprocessing
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.data import StackDataset, Subset, TensorDataset

from fastloader import FastLoader
from fastloader.datasets._batched import as_batched
from fastloader.datasets._held import copied_tensors
from fastloader.machine._huge_pages import HUGE_BYTES
from fastloader.tensors import _huge_pages
from fastloader.tensors._huge_pages import LEAST_BYTES, NUM_TRIED, HugePages

PASS_SECONDS = 0.010
PAGE_SECONDS = 0.0004


class Moves:
    """Takes note of pages; each takes some time."""

    def __init__(self, most=1000, page_seconds=PAGE_SECONDS):
        self.now = 0.0
        self.pages = []
        self._most = most
        self._page_seconds = page_seconds

    def collapse(self, address, num_bytes):
        self.now += self._page_seconds
        self.pages.append((address, num_bytes))
        return len(self.pages) < self._most

    def clock(self):
        return self.now


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    monkeypatch.setattr(_huge_pages, "_may_collapse", lambda: True)


def run_passes(moves, num_passes, tensors):
    """Return how many pages were moved before each pass."""
    pages = HugePages(moves.collapse, moves.clock)
    nums = [0]
    for _ in range(num_passes):
        pages.begin_pass(lambda: tensors)
        nums.append(len(moves.pages))
        moves.now += PASS_SECONDS
    return [after - before for before, after in pairwise(nums)]


def rows_of(num_bytes, row_bytes=3072):
    return torch.empty(num_bytes // row_bytes, row_bytes, dtype=torch.uint8)


def test_it_takes_a_share_of_the_passes_from_the_third_on():
    nums = run_passes(Moves(), 9, [rows_of(23 * HUGE_BYTES)])

    assert nums[:9] == [0, 0, 3, 3, 3, 3, 3, 3, 3]  # of 21 or 22 whole ones


def test_it_ends_where_pages_are_dear():
    moves = Moves(page_seconds=0.006)

    assert sum(run_passes(moves, 30, [rows_of(40 * HUGE_BYTES)])) == NUM_TRIED


def test_all_whole_huge_pages_of_a_tensor_are_moved_once():
    tensor, moves = rows_of(3 * LEAST_BYTES), Moves()
    start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes

    run_passes(moves, 20, [tensor])

    pages = moves.pages
    assert all(address % HUGE_BYTES == size % HUGE_BYTES == 0 for address, size in pages)
    assert all(a + size == b for (a, size), (b, _) in pairwise(pages))
    assert 0 <= pages[0][0] - start < HUGE_BYTES
    assert 0 <= stop - sum(pages[-1]) < HUGE_BYTES


@pytest.mark.parametrize(
    "tensor",
    [
        rows_of(LEAST_BYTES - 3072),
        rows_of(2 * LEAST_BYTES, 1 << 20),
        rows_of(4 * LEAST_BYTES)[::2],
    ],
    ids=["small", "large rows", "with gaps"],
)
def test_other_data_are_left_where_they_are(tensor):
    assert run_passes(Moves(), 6, [tensor]) == [0] * 6


def test_it_ends_where_the_system_has_no_more_huge_pages():
    assert sum(run_passes(Moves(most=2), 9, [rows_of(20 * HUGE_BYTES)])) == 2


def test_an_administrator_who_turned_them_off_is_heeded(monkeypatch):
    monkeypatch.setattr(_huge_pages, "_may_collapse", lambda: False)

    assert run_passes(Moves(), 6, [rows_of(20 * HUGE_BYTES)]) == [0] * 6


def test_tensors_are_found_in_what_a_dataset_is_made_of():
    first, second = torch.zeros(4, 3), torch.ones(4, 3)
    dataset = StackDataset(Subset(TensorDataset(first, second), [0, 1, 2, 3]), first)

    found = [*copied_tensors(as_batched(dataset))]

    assert [id(tensor) for tensor in found] == [id(first), id(second), id(first)]


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


@needs_linux
def test_batches_are_the_same_as_before():
    images = torch.arange(LEAST_BYTES // 4, dtype=torch.int32).reshape(-1, 1024)
    before = images.clone()
    loader = FastLoader(TensorDataset(images), 64, shuffle=True)
    started = loader._opener._huge_pages

    for _ in range(5):
        batches = [batch for [batch] in loader]

    assert started._pages is not None
    assert torch.equal(images, before)
    assert torch.equal(torch.cat(batches).sort(0).values, before)


@needs_linux
def test_memory_is_in_huge_pages_afterwards():
    tensor = torch.ones(2 * LEAST_BYTES, dtype=torch.uint8).reshape(-1, 1024)
    address, num_bytes = next(_huge_pages._pages_of([tensor]))
    if not _huge_pages._is_ours_alone(address, num_bytes):
        pytest.skip("the system does not tell")
    if not _huge_pages._collapse(address, num_bytes):
        pytest.skip("no huge pages")

    text = Path("/proc/self/smaps").read_text(encoding="utf-8")

    sizes = map(int, re.findall(r"^AnonHugePages: +(\d+) kB", text, re.MULTILINE))
    assert sum(sizes) << 10 >= num_bytes


def _wait(connection):
    connection.recv()


@needs_linux
@pytest.mark.multiprocess
def test_what_a_forked_process_shares_is_left_alone(monkeypatch):
    tensor = torch.ones(2 * LEAST_BYTES, dtype=torch.uint8).reshape(-1, 1024)
    page = next(_huge_pages._pages_of([tensor]))
    if not _huge_pages._is_ours_alone(*page):
        pytest.skip("the system does not tell")
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_wait, args=(theirs,))
    child.start()

    is_alone = _huge_pages._is_ours_alone(*page)
    ours.send(None)
    child.join()

    assert not is_alone
    assert _huge_pages._is_ours_alone(*page)


@needs_linux
def test_a_file_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(LEAST_BYTES))
    tensor = torch.from_file(str(path), size=LEAST_BYTES, dtype=torch.uint8).reshape(-1, 1024)
    tensor.sum()

    assert not any(
        _huge_pages._is_ours_alone(*page) for page in _huge_pages._pages_of([tensor])
    )
