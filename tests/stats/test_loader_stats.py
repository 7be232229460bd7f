"""A loader measures itself, whichever way its batches come."""

import copy
import gc
import pickle
import threading
import time

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset, get_worker_info

from fastloader import FastLoader
from fastloader.errors import SettingsError
from fastloader.stats import LoaderStats, PassTally, StatsSnapshot, _pass_tally, _recorder
from fastloader.stats._totals import Totals


class Sleepy:
    """Samples that take a given time each."""

    def __init__(self, length, seconds):
        self.length = length
        self.seconds = seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((8,), float(index)), index


class Stream(IterableDataset):
    """Numbers, shared out over the workers."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        step, first = (1, 0) if info is None else (info.num_workers, info.id)
        yield from map(torch.tensor, range(first, self.length, step))


WAYS = [
    pytest.param({"num_workers": 0}, id="in_process"),
    pytest.param({"num_workers": 2}, id="processes", marks=pytest.mark.multiprocess),
    pytest.param({"num_workers": 2, "workers": "threads"}, id="threads"),
    pytest.param({"num_workers": 0, "transport": "torch"}, id="torch"),
    pytest.param(
        {"num_workers": 2, "transport": "torch", "persistent_workers": True},
        id="torch_workers",
        marks=pytest.mark.multiprocess,
    ),
]


@pytest.mark.parametrize("way", WAYS)
def test_every_batch_and_sample_is_counted(way):
    loader = FastLoader(Sleepy(10, 0), 4, **way)

    for _ in range(2):
        list(loader)
    total, epoch = loader.stats.snapshot(), loader.stats.snapshot("epoch")

    assert (total.num_epochs, total.num_batches, total.num_samples) == (2, 6, 20)
    assert (epoch.num_epochs, epoch.num_batches, epoch.num_samples) == (1, 3, 10)


@pytest.mark.parametrize("way", WAYS)
def test_what_the_consumer_does_is_not_waiting(way):
    loader = FastLoader(Sleepy(24, 0), 2, **way)

    started = time.perf_counter()
    for _ in loader:
        time.sleep(0.01)
    elapsed_seconds = time.perf_counter() - started
    snapshot = loader.stats.snapshot()

    waited_seconds = snapshot.wait_share * snapshot.elapsed_seconds
    assert snapshot.elapsed_seconds <= elapsed_seconds
    assert snapshot.samples_per_second < 2 / 0.01
    assert waited_seconds <= elapsed_seconds - 12 * 0.01


def test_waiting_for_slow_samples_is_seen():
    loader = FastLoader(Sleepy(12, 0.005), 2, num_workers=0)

    list(loader)
    snapshot = loader.stats.snapshot()

    assert snapshot.wait_share > 0.9
    assert snapshot.next_p50_seconds >= 0.0098
    assert snapshot.first_batch_seconds >= 0.0098
    assert snapshot.samples_per_second <= 1 / 0.005


@pytest.mark.multiprocess
def test_workers_that_wait_are_told_from_those_that_compute():
    loader = FastLoader(Sleepy(16, 0.01), 2, num_workers=2)

    list(loader)
    shares = loader.stats.snapshot().workers

    assert [share.worker for share in shares] == [0, 1]
    assert sum(share.num_batches for share in shares) == 8
    for share in shares:
        assert 0 < share.busy_share <= 1.0
        assert share.cpu_share < share.busy_share / 2


def test_threads_tell_how_busy_they_are():
    loader = FastLoader(Sleepy(16, 0.005), 2, num_workers=2, workers="threads")

    list(loader)
    shares = loader.stats.snapshot().workers

    assert sum(share.num_batches for share in shares) == 8
    assert all(share.busy_share > 0.2 for share in shares)


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_an_iterable_dataset_are_those_that_came(num_workers):
    loader = FastLoader(Stream(21), 4, num_workers=num_workers)

    list(loader)

    assert loader.stats.snapshot().num_samples == 21


def test_single_samples_count_one_each():
    loader = FastLoader(Sleepy(5, 0), None, num_workers=0)

    list(loader)

    assert loader.stats.snapshot().num_samples == 5


def test_bytes_are_those_of_the_batches():
    loader = FastLoader(TensorDataset(torch.zeros(64, 3)), 4)

    list(loader)
    snapshot = loader.stats.snapshot()

    assert snapshot.batch_bytes == 48
    expected = 48 * snapshot.batches_per_second
    assert snapshot.batch_bytes_per_second == pytest.approx(expected)


def test_live_iterators_count_for_themselves():
    loader = FastLoader(Sleepy(12, 0), 3, num_workers=0)

    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    next(second)
    between = loader.stats.snapshot()
    epoch = loader.stats.snapshot("epoch")
    remaining = len(list(first)) + len(list(second))
    total = loader.stats.snapshot()

    assert (between.num_epochs, between.num_batches) == (2, 3)
    assert epoch.num_batches == 2
    assert remaining == 5
    assert (total.num_epochs, total.num_batches, total.num_samples) == (2, 8, 24)


def test_a_pass_that_was_left_is_counted_as_far_as_it_went():
    loader = FastLoader(Sleepy(12, 0), 3, num_workers=0)

    for _ in loader:
        break
    list(loader)

    assert loader.stats.snapshot().num_batches == 5


def test_reset_forgets_all_but_what_comes():
    loader = FastLoader(Sleepy(24, 0), 3, num_workers=2, workers="threads")

    iterator = iter(loader)
    next(iterator)
    loader.stats.reset()
    after = loader.stats.snapshot()
    num_left = len(list(iterator))
    snapshot = loader.stats.snapshot()

    assert after.num_batches == 0
    assert after.elapsed_seconds == 0
    assert snapshot.num_batches == num_left == 7
    assert sum(share.num_batches for share in snapshot.workers) <= 8


def test_the_time_between_passes_is_measured():
    loader = FastLoader(Sleepy(4, 0.01), 2, num_workers=0)

    list(loader)
    assert loader.stats.snapshot().epoch_gap_seconds is None
    time.sleep(0.2)
    list(loader)

    assert 0.0195 <= loader.stats.snapshot().epoch_gap_seconds < 0.2


def test_a_long_pass_needs_no_more_memory_and_loses_no_batch():
    loader = FastLoader(TensorDataset(torch.zeros(5000)), 1)

    for _ in loader:
        pass
    snapshot = loader.stats.snapshot()

    assert snapshot.num_batches == snapshot.num_samples == 5000
    assert snapshot.next_p50_seconds <= snapshot.next_p95_seconds <= snapshot.next_p99_seconds
    assert snapshot.next_p99_seconds <= snapshot.next_max_seconds


@pytest.mark.parametrize("workers", [{"num_workers": 0}, {"workers": "threads"}], ids=str)
def test_batches_of_any_lengths_are_counted_exactly(workers):
    lengths = [3, 3, 1, 4, 4, 3, 1]
    order = [list(range(length)) for length in lengths]
    loader = FastLoader(Sleepy(4, 0), batch_sampler=order, **workers)

    iterator = iter(loader)
    counts = []
    for place in range(len(lengths)):
        next(iterator)
        counts.append(loader.stats.snapshot().num_samples)
        if place == 3:
            loader.stats.reset()
    iterator.close()

    assert counts == [3, 6, 7, 11, 4, 7, 8]


def test_passes_are_summed_up_later_and_none_is_lost(monkeypatch):
    monkeypatch.setattr(_recorder, "MOST_KEPT", 3)
    loader = FastLoader(Sleepy(4, 0), 2, num_workers=0)

    kept = []
    for _ in range(5):
        list(loader)
        kept.append(len(loader.stats._passes))
    first, again = loader.stats.snapshot(), loader.stats.snapshot()
    epoch = loader.stats.snapshot("epoch")
    loader.stats.reset()

    assert kept == [1, 2, 3, 1, 2]
    assert (first.num_epochs, first.num_batches, first.num_samples) == (5, 10, 20)
    assert (again.num_epochs, again.num_batches, again.num_samples) == (5, 10, 20)
    assert (epoch.num_epochs, epoch.num_batches, epoch.num_samples) == (1, 2, 4)
    assert loader.stats.snapshot().num_batches == 0


def totals_of(tally):
    totals = Totals()
    tally.add_to(totals)
    return totals


@pytest.mark.parametrize("lengths", [[0, 0, 2, 3], [0, 5], [2, 0, 2]], ids=str)
def test_batches_without_samples_are_counted_as_none(lengths):
    tally = PassTally(time.perf_counter())

    for length in lengths:
        tally.note(time.perf_counter(), length, None)

    assert totals_of(tally).num_samples == sum(lengths)


def test_bytes_are_counted_in_rows_of_batches_and_notes_are_summed_up_between(monkeypatch):
    monkeypatch.setattr(_pass_tally, "LOOK_EVERY_SECONDS", 0.0)
    tally = PassTally(time.perf_counter(), num_warm_up=3)

    for _ in range(2 * _pass_tally.LOOKED_AT_ONCE + 2):
        tally.note(time.perf_counter(), 1, torch.zeros(2))
        time.sleep(1e-4)

    assert len(tally.waits) <= _pass_tally.LOOKED_AT_ONCE + 1
    totals = totals_of(tally)
    assert totals.num_measured_batches == 2 * _pass_tally.LOOKED_AT_ONCE
    assert totals.measured_bytes == 8 * totals.num_measured_batches
    assert totals.steady.count == 2 * _pass_tally.LOOKED_AT_ONCE + 2 - 4


def test_few_batches_are_looked_at_where_many_come_in_no_time(monkeypatch):
    monkeypatch.setattr(_pass_tally, "LOOK_EVERY_SECONDS", 3600.0)
    tally = PassTally(time.perf_counter(), num_warm_up=20)

    for _ in range(100):
        tally.note(time.perf_counter(), 1, torch.zeros(2))
    totals = totals_of(tally)

    assert totals.num_measured_batches == _pass_tally.LOOKED_AT_ONCE
    assert totals.steady_samples == totals.steady.count == 100 - 21


def snapshot_when_ready(loader, num_batches):
    """Return the figures once so many batches are ready, or of five seconds later."""
    deadline = time.monotonic() + 5
    while (
        loader.stats.snapshot().num_ready_batches < num_batches and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    return loader.stats.snapshot()


@pytest.mark.multiprocess
def test_what_is_under_way_is_seen():
    loader = FastLoader(Sleepy(40, 0), 2, num_workers=2, prefetch_factor=3)

    iterator = iter(loader)
    next(iterator)
    snapshot = snapshot_when_ready(loader, 6)
    iterator.close()

    assert snapshot.num_queued_batches == snapshot.num_ready_batches == 6
    assert snapshot.num_slots - snapshot.num_free_slots >= 6
    assert snapshot.slots_in_use_bytes > 0
    assert snapshot.host_bytes_in_flight == 6 * snapshot.batch_bytes
    assert loader.stats.snapshot().num_queued_batches == 0


@pytest.mark.multiprocess
def test_what_torchs_own_workers_have_under_way_is_seen():
    loader = FastLoader(
        Sleepy(40, 0),
        2,
        num_workers=2,
        prefetch_factor=3,
        transport="torch",
        persistent_workers=False,
    )

    iterator = iter(loader)
    next(iterator)
    snapshot = snapshot_when_ready(loader, 6)
    del iterator
    after = loader.stats.snapshot()

    assert snapshot.num_queued_batches == snapshot.num_ready_batches == 6
    assert (after.num_epochs, after.num_batches, after.num_queued_batches) == (1, 1, 0)


def test_all_live_iterators_are_looked_at():
    loader = FastLoader(Sleepy(40, 0), 2, num_workers=1, workers="threads", prefetch_factor=3)

    iterators = [iter(loader), iter(loader)]
    for iterator in iterators:
        next(iterator)
    both = loader.stats.snapshot()
    latest = loader.stats.snapshot("epoch")
    iterators.pop().close()
    first = loader.stats.snapshot()

    assert [one.num_queued_batches for one in (both, latest, first)] == [6, 3, 3]


def test_an_iterator_may_be_collected_while_statistics_are_summed_up(monkeypatch):
    loader = FastLoader(Sleepy(40, 0), 2, num_workers=0)
    kept, left = iter(loader), iter(loader)
    next(kept), next(left)
    cycle = [left]
    cycle.append(cycle)
    add_to = PassTally.add_to

    def add_after_collecting(tally, totals):
        gc.collect()
        add_to(tally, totals)

    monkeypatch.setattr(PassTally, "add_to", add_after_collecting)
    loader.stats._passes[0].close()
    del left, cycle
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(loader.stats.snapshot().num_batches), daemon=True
    )
    thread.start()
    thread.join(10)

    assert seen == [2]


def test_workers_that_have_nothing_to_do_while_the_loop_pauses_are_not_busy():
    loader = FastLoader(Sleepy(40, 0.002), 2, num_workers=1, workers="threads")

    iterator = iter(loader)
    next(iterator)
    time.sleep(0.3)
    snapshot = loader.stats.snapshot()
    iterator.close()

    assert 0 < snapshot.workers[0].busy_share < 0.5


def test_threads_count_the_batches_of_a_stream_that_they_made():
    loader = FastLoader(Stream(10), 2, num_workers=2, workers="threads")

    num_batches = len(list(loader))

    assert sum(worker.num_batches for worker in loader.stats.snapshot().workers) == num_batches


def test_a_snapshot_is_of_a_pass_or_of_all():
    with pytest.raises(SettingsError, match="of should be 'total' or 'epoch', but got 'last'"):
        FastLoader(range(4), 2).stats.snapshot("last")


def test_torchs_own_way_is_told_with_its_reason():
    loader = FastLoader(Sleepy(4, 0), 2, num_workers=0, transport="torch")

    list(loader)

    assert loader.stats.snapshot().fallbacks == ("torch's own iterators: transport='torch'",)


def test_torchs_own_iterators_stay_what_frameworks_ask_for():
    loader = FastLoader(Sleepy(4, 0), 2, num_workers=0, transport="torch")

    iterator = iter(loader)

    assert isinstance(iterator, torch.utils.data.dataloader._SingleProcessDataLoaderIter)
    assert type(iterator).__name__ == "_SingleProcessDataLoaderIter"


def test_data_that_cannot_lie_on_a_device_is_told():
    loader = FastLoader(TensorDataset(torch.zeros(4)), 2, resident="device")

    list(loader)

    assert loader.stats.snapshot().fallbacks == ("not resident: batches stay on the CPU",)


def test_skipped_samples_are_counted():
    class Broken(Sleepy):
        def __getitem__(self, index):
            if index == 1:
                raise ValueError("broken")
            return index

    loader = FastLoader(Broken(4, 0), 2, num_workers=0, on_error="skip")

    list(loader)

    snapshot = loader.stats.snapshot()
    assert (snapshot.num_skipped_samples, snapshot.num_samples) == (1, 3)


@pytest.mark.parametrize("first_broken", [4, 8])
def test_batches_that_are_left_out_whole_count_no_samples(first_broken):
    class Broken(Sleepy):
        def __getitem__(self, index):
            if index >= first_broken:
                raise ValueError("broken")
            return index

    loader = FastLoader(Broken(10, 0), 4, num_workers=0, on_error="skip")

    list(loader)

    assert loader.stats.snapshot().num_samples == first_broken


def test_loggers_get_numbers_by_name():
    loader = FastLoader(Sleepy(4, 0), 2, num_workers=2, workers="threads")

    empty = loader.stats.snapshot().as_dict()
    list(loader)
    values = loader.stats.snapshot().as_dict("loader/")

    assert "wait_share" not in empty
    assert "loader/num_batches" in values
    assert any(name.startswith("loader/worker_") for name in values)
    assert all(isinstance(value, int | float) for value in values.values())


def test_a_snapshot_reads_as_a_table():
    loader = FastLoader(Sleepy(4, 0), 2, num_workers=0, transport="torch")

    list(loader)
    text = str(loader.stats.snapshot())

    assert "num_batches" in text
    assert "falls back: torch's own iterators" in text


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_of_a_loader_counts_for_itself(duplicate):
    loader = FastLoader(Sleepy(4, 0), 2, num_workers=0)
    list(loader)

    other = duplicate(loader)
    list(other)
    list(other)

    assert loader.stats.snapshot().num_epochs == 1
    assert other.stats.snapshot().num_epochs == 2


def test_a_loader_that_was_not_used_has_nothing_to_tell():
    assert LoaderStats().snapshot() == LoaderStats().snapshot("epoch")
    assert isinstance(LoaderStats().snapshot(), StatsSnapshot)
    assert LoaderStats().snapshot().wait_share is None


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "num_workers": 2},
        {"batch_size": 4, "num_workers": 2, "in_order": False},
        {"batch_sampler": [[0, 1, 2], [3], [4, 5, 6, 7, 8, 9]]},
        {"batch_size": None},
    ],
    ids=["regular", "workers", "as they are ready", "uneven", "no batches"],
)
def test_samples_are_counted_batch_by_batch(options):
    loader = FastLoader(list(range(10)), **options)
    num_taken = 0

    for batch in loader:
        num_taken += torch.as_tensor(batch).numel()
        assert loader.stats.snapshot().num_samples == num_taken

    assert loader.stats.snapshot("epoch").num_samples == num_taken == 10
