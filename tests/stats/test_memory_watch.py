"""A warning comes before memory runs out, once, and names what to lower."""

import pytest

from fastloader._queue_state import QueueState
from fastloader.stats import _memory_watch
from fastloader.stats._memory_watch import MemoryWatch


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


def test_enough_memory_is_no_news(left, caplog):
    left(900_000_000)

    MemoryWatch().look(queue, 100e6)

    assert not caplog.records


def test_memory_is_not_looked_at_with_every_batch(monkeypatch):
    monkeypatch.setattr(_memory_watch, "read_available_bytes", None)

    MemoryWatch().look(queue, 100e6)
