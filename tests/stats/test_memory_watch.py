"""A warning comes before memory runs out, once, and names what to lower."""

import pytest
import torch
from torch.utils.data import TensorDataset

from fastloader import FastLoader
from fastloader.stats import _memory_watch
from fastloader.stats._memory_watch import MemoryWatch
from fastloader.streams._queue_state import QueueState


def queue():
    return QueueState(num_asked=8)


@pytest.fixture
def left(monkeypatch):
    """Lets every look happen, and says how much memory is left."""
    monkeypatch.setattr(_memory_watch, "EVERY_SECONDS", 0.0)
    return lambda num_bytes: monkeypatch.setattr(
        _memory_watch, "read_available_bytes", lambda _root: num_bytes
    )


def test_running_out_is_told_once_with_what_to_lower(left, caplog):
    left(500_000_000)
    watch = MemoryWatch()

    for _ in range(3):
        watch.look(queue, 100e6)

    [record] = caplog.records
    assert "500 MB are left" in record.getMessage()
    assert "prefetch_factor, num_workers or batch_size" in record.getMessage()


def test_the_faster_memory_goes_the_sooner_it_is_looked_at_again(monkeypatch, caplog):
    clock, looks = [0.0], []
    monkeypatch.setattr(_memory_watch.time, "monotonic", lambda: clock[0])

    def left(_root):
        looks.append(clock[0])
        return int(4e9 - 1e9 * clock[0])

    monkeypatch.setattr(_memory_watch, "read_available_bytes", left)
    watch = MemoryWatch()
    while clock[0] < 4.0:
        watch.look(queue, 100e6)
        clock[0] += 0.01

    assert looks[0] == 0.0
    assert len(looks) < 20
    assert (
        len(caplog.records) == 1
    )  # within four seconds, with room for once more what is ahead
    assert "Memory is running out" in caplog.text


def test_enough_memory_is_no_news(left, caplog):
    left(900_000_000)

    MemoryWatch().look(queue, 100e6)

    assert not caplog.records


def test_no_room_for_torchs_batches_is_told_once_with_what_to_do(left, caplog, monkeypatch):
    left(10**12)
    monkeypatch.setattr(_memory_watch, "read_shared_bytes", lambda: 64_000_000)
    watch = MemoryWatch()

    for _ in range(3):
        watch.look(lambda: QueueState(most_in_dev_shm=4), 20e6)

    [record] = caplog.records
    assert "64 MB are left in /dev/shm" in record.getMessage()
    assert "take 80 MB" in record.getMessage()
    assert "--shm-size" in record.getMessage()


def test_shared_memory_that_nobody_uses_may_be_full(left, caplog, monkeypatch):
    left(10**12)
    monkeypatch.setattr(_memory_watch, "read_shared_bytes", lambda: 0)

    MemoryWatch().look(queue, 20e6)

    assert not caplog.records


@pytest.mark.multiprocess
def test_a_small_dev_shm_is_seen_while_torchs_workers_run(left, caplog, monkeypatch):
    left(10**12)
    monkeypatch.setattr(_memory_watch, "read_shared_bytes", lambda: 1000)
    images = TensorDataset(torch.zeros(16, 256))

    list(FastLoader(images, 4, num_workers=1, prefetch_factor=2, transport="torch"))

    assert "/dev/shm" in caplog.text


def test_memory_is_not_looked_at_with_every_batch(monkeypatch):
    looks = []
    monkeypatch.setattr(
        _memory_watch, "read_available_bytes", lambda _root: looks.append(0) or 10**12
    )
    watch = MemoryWatch()

    watch.look(queue, 1e4)
    assert not looks

    for _ in range(3):
        watch.look(queue, 100e6)
    assert len(looks) == 1  # before a worker can have filled what there is
