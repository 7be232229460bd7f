"""Batches through worker threads: complete, in order, equal to stock's, and nothing left."""

import gc
import logging
import threading
import time
import weakref
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from fastloader import FastLoader
from fastloader.datasets import Augment
from fastloader.errors import SettingsError, WorkerTimeoutError
from fastloader.transforms import RandomFlip
from tests.engine.datasets import Faulty, Images, NoState, Slow, Stream
from tests.equality import assert_same

pytestmark = pytest.mark.usefixtures("no_leaks")


def threads(dataset, batch_size=4, num_workers=3, **options):
    return FastLoader(
        dataset, batch_size, num_workers=num_workers, workers="threads", **options
    )


class Nested(Dataset):
    """Samples of several fields, of torch and NumPy."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return {
            "image": torch.full((2, 3), index, dtype=torch.bfloat16),
            "mask": np.full((4,), index, dtype=np.uint16),
            "pair": (index, f"sample {index}"),
            "scalar": np.float64(index),
        }


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 23, None])
def test_batches_are_stocks(num_workers, batch_size):
    data = Nested()

    batches = list(threads(data, batch_size, num_workers))

    for expected, batch in zip(DataLoader(data, batch_size), batches, strict=True):
        assert_same(expected, batch)


def test_the_shuffled_order_is_stocks_in_every_epoch():
    loader, stock = threads(range(30), shuffle=True), DataLoader(range(30), 4, shuffle=True)

    for seed in (1, 2):
        torch.manual_seed(seed)
        expected = [batch.tolist() for batch in stock]
        torch.manual_seed(seed)
        assert [batch.tolist() for batch in loader] == expected


class Jumbled(Images):
    """Takes a different time for each sample."""

    def __getitem__(self, index):
        time.sleep((index * 7919 % 5) / 1000)
        return index


def test_samples_that_take_their_time_come_in_order():
    assert torch.cat(list(threads(Jumbled(80), 5))).tolist() == list(range(80))


def test_without_order_a_slow_batch_holds_nobody_up():
    data = Slow(16, slow_index=0, seconds=0.5)

    batches = [batch.tolist() for batch in threads(data, 2, in_order=False)]

    assert batches[0] != [0, 1]
    assert sorted(index for batch in batches for index in batch) == list(range(16))


def test_the_samples_of_one_batch_are_read_at_the_same_time():
    barrier = threading.Barrier(3, timeout=5)

    class Meeting(Images):
        def __getitem__(self, index):
            barrier.wait()
            return index

    assert [b.tolist() for b in threads(Meeting(3), 3)] == [[0, 1, 2]]


def test_large_batches_lie_in_memory_that_is_used_again():
    loader = threads(Images(64, shape=(3, 64, 64)), 8, 2)
    for _ in range(4):
        for images, labels in loader:
            assert (images[:, 0, 0, 0] == labels).all()

    assert loader._opener._buffers.num_made <= 8


def test_kept_batches_are_never_overwritten():
    kept = [batch for _ in range(3) for batch in threads(Images(40, shape=(3, 64, 64)))]

    for images, labels in kept:
        assert torch.equal(images[:, -1, -1, -1], labels.float())


def test_keyed_draws_do_not_depend_on_the_workers():
    data = Augment(Nested(), RandomFlip(), field="image")
    loaders = [FastLoader(data, 4, seed=3, num_workers=0), threads(data, seed=3)]

    for _ in range(2):
        for expected, batch in zip(*loaders, strict=True):
            assert_same(expected, batch)


class Asking(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        info = get_worker_info()
        return info.id, info.num_workers, info.seed


def test_datasets_see_which_worker_they_are_in():
    found = {
        (worker, count, seed)
        for batch in threads(Asking(), 1, 3)
        for worker, count, seed in zip(*map(torch.Tensor.tolist, batch), strict=True)
    }

    assert {count for _, count, _ in found} == {3}
    assert {worker for worker, _, _ in found} <= {0, 1, 2}
    assert len({seed for _, _, seed in found}) == len({worker for worker, _, _ in found})
    assert get_worker_info() is None


def test_an_iterable_dataset_is_shared_out():
    stock = DataLoader(Stream(40), 4, num_workers=0)

    found = torch.cat(list(threads(Stream(40), 4, 2)))

    assert sorted(found.tolist()) == torch.cat(list(stock)).tolist()


def test_an_iterable_dataset_that_does_not_split_brings_a_warning():
    with pytest.warns(UserWarning, match="an epoch has every sample 2 times"):
        found = list(threads(Stream(8, splits=False), 4, 2))

    assert len(found) == 4


def test_dropped_ends_of_an_iterable_dataset_bring_a_warning():
    with pytest.warns(UserWarning, match="dropped"):
        list(threads(Stream(14), 4, 2, drop_last=True))


def test_an_error_keeps_its_type_and_says_where():
    iterator = iter(threads(Faulty(16, faulty=(5,))))
    next(iterator)

    with pytest.raises(KeyError, match="label") as caught:
        next(iterator)

    notes = "\n".join(caught.value.__notes__)
    assert "sample at index 5" in notes
    assert "worker thread" in notes
    assert "batch 1 of epoch 0, samples 4, 5, 6, 7" in notes
    assert [labels.tolist() for _, labels in iterator] == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_an_error_of_collating_names_the_field():
    iterator = iter(threads([torch.zeros(2), torch.zeros(3)], 2))

    with pytest.raises(RuntimeError, match="equal size") as caught:
        next(iterator)

    assert "Default collate failed" in "\n".join(caught.value.__notes__)
    iterator.close()


def test_skipped_samples_are_listed():
    loader = threads(Faulty(16, faulty=(0, 1, 2, 3, 9)), on_error="skip")

    found = torch.cat([labels for _, labels in loader]).tolist()

    assert found == [4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15]
    assert [skip.index for skip in loader.skipped] == [0, 1, 2, 3, 9]


def fail_to_start(worker):
    raise RuntimeError(f"no start of {worker}")


def test_an_error_of_worker_init_fn_is_raised():
    with pytest.raises(RuntimeError, match="no start of 0") as caught:
        list(threads(Images(), 4, 1, worker_init_fn=fail_to_start))

    assert "did not start" in caught.value.__notes__[-1]


def test_worker_init_fn_is_called_in_each_thread():
    seen = []

    list(
        threads(Images(), 4, 3, worker_init_fn=lambda n: seen.append((n, get_worker_info().id)))
    )

    assert sorted(seen) == [(0, 0), (1, 1), (2, 2)]


def test_a_timeout_names_sample_and_line():
    iterator = iter(threads(Slow(seconds=0.8), 2, 2, timeout=0.2))

    with pytest.raises(WorkerTimeoutError, match=r"(?s)samples 0, 1.*time\.sleep") as caught:
        next(iterator)

    assert "timed out after 0.2 seconds" in str(caught.value)


def test_a_stall_is_logged(caplog):
    loader = threads(Slow(seconds=0.5), 2, 2, watchdog_seconds=0.1)

    with caplog.at_level(logging.WARNING):
        next(iter(loader))

    assert "No batch for 0 seconds" in caplog.text
    assert "time.sleep" in caplog.text


def test_a_broken_off_epoch_ends_its_threads():
    before = threading.active_count()
    loader = threads(Images(400))

    for _ in range(10):
        for _ in loader:
            break
        gc.collect()

    assert threading.active_count() == before


def test_two_passes_at_once_do_not_disturb_each_other():
    loader = threads(range(12))

    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]

    assert all(first == second for first, second in pairs)
    assert len(pairs) == 3


def test_a_dataset_of_whole_batches_is_asked_for_them():
    data = TensorDataset(torch.arange(20))

    assert [b.tolist() for [b] in threads(data)] == [b.tolist() for [b] in DataLoader(data, 4)]


def test_a_collate_function_of_the_user_is_called():
    loader = threads(Nested(), collate_fn=lambda samples: [s["pair"][0] for s in samples])

    assert [index for batch in loader for index in batch] == list(range(23))


def test_default_collate_in_a_function_of_the_user_makes_no_shared_memory():
    weight = torch.ones(3, requires_grad=True)

    [batch] = threads([weight * 2, weight], collate_fn=_of_two)

    assert not batch.is_shared()
    assert batch.requires_grad


def _of_two(samples):
    assert get_worker_info() is not None
    return default_collate(samples)


def test_threads_of_arithmetic_are_not_multiplied():
    seen = []

    class Counting(Images):
        def __getitem__(self, index):
            seen.append(torch.get_num_threads())
            return index

    before = torch.get_num_threads()
    list(threads(Counting(8)))

    assert set(seen) == {1}
    assert torch.get_num_threads() == before


def test_more_threads_than_cores_are_not_called_processes(recwarn):
    loader = threads(Images(8), num_workers=64)

    assert len(list(loader)) == 2
    assert not [one for one in recwarn if "processes" in str(one.message)]


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2, "workers": "threads"}]
)
def test_who_is_done_with_an_error_is_done_with_its_pass(options):
    class Unreadable(Images):
        def __getitem__(self, index):
            raise OSError(f"no file {index}")

    def read():
        iterator = iter(FastLoader(Unreadable(), 4, **options))
        with suppress(OSError):
            list(iterator)
        return weakref.ref(iterator)

    gc.collect()
    gc.disable()
    try:
        assert read()() is None
    finally:
        gc.enable()


def test_settings_say_what_workers_are():
    loader = threads(Images())

    assert loader.settings.workers == "threads"
    assert loader.settings.multiprocessing_context is None
    with pytest.raises(SettingsError, match="workers"):
        FastLoader(Images(), workers="fibers")


def test_an_error_at_the_end_of_a_stream_arrives(tmp_path):
    with pytest.raises(LookupError, match="no place"):
        list(threads(NoState(set(), tmp_path), num_workers=1))
