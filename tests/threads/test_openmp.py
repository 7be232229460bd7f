"""One thread computes alone in a block; the others, and it afterwards, as before."""

import threading

import torch

from fastloader.threads._openmp import without_openmp


def test_the_thread_computes_alone_in_the_block_only():
    before = torch.get_num_threads()

    with without_openmp():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_other_threads_keep_their_number():
    before, seen = torch.get_num_threads(), []

    with without_openmp():
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    assert seen == [before]


def test_draws_are_the_same():
    expected = torch.randperm(100_000, generator=torch.Generator().manual_seed(3))

    with without_openmp():
        found = torch.randperm(100_000, generator=torch.Generator().manual_seed(3))

    assert torch.equal(found, expected)
