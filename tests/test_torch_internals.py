"""What this package relies on in torch's private names."""

import torch
from torch.utils.data import get_worker_info

from fastloader._torch_internals import (
    WatchedWorkerInfo,
    collate,
    default_collate_fn_map,
    set_worker_info,
)


def make_info():
    return WatchedWorkerInfo(id=2, num_workers=4, seed=7, dataset=None)


def test_worker_info_says_what_it_was_given_and_notes_who_asks():
    info = make_info()

    assert not info.was_asked
    assert (info.id, info.num_workers, info.seed) == (2, 4, 7)
    assert info.was_asked


def test_reading_the_seed_is_no_sign_of_splitting():
    info = make_info()

    assert info.seed == 7
    assert not info.was_asked


def test_get_worker_info_gives_what_was_set():
    info = make_info()
    previous = get_worker_info()
    try:
        set_worker_info(info)
        assert get_worker_info() is info
    finally:
        torch.utils.data._utils.worker._worker_info = previous


def test_collate_takes_its_functions_from_a_table():
    table = {**default_collate_fn_map, int: sum_of}

    assert collate([(1, "a"), (2, "b")], collate_fn_map=table) == [3, ("a", "b")]


def sum_of(batch, *, collate_fn_map):
    return sum(batch)
