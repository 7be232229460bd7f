"""Batches are pinned by a thread, which ends with the stream."""

import threading
import time
from collections import deque

import pytest
import torch

from fastloader.stages import LostBatchError, PinnedStream

pytestmark = pytest.mark.usefixtures("no_leaks")


class Source:
    """Gives tensors of one number each."""

    is_on_demand = False

    def __init__(self, count):
        self.numbers = deque(range(count))
        self.is_closed = False

    def __next__(self):
        if not self.numbers:
            raise StopIteration
        return torch.tensor([self.numbers.popleft()])

    def next_if_ready(self):
        return [next(self)] if self.numbers else []

    def close(self):
        self.is_closed = True


@pytest.fixture
def pinned_by(monkeypatch):
    """Let memory be pinned where there is nothing to pin it for; collects the threads that do."""
    threads = set()

    def pin(tensor):
        threads.add(threading.get_ident())
        return tensor

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return threads


def test_batches_come_in_order_from_one_other_thread(pinned_by):
    source = Source(9)
    stream = PinnedStream(source)

    found = [next(stream).item() for _ in range(9)]
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()

    assert found == list(range(9))
    assert len(pinned_by) == 1
    assert threading.get_ident() not in pinned_by
    assert source.is_closed


def test_what_is_made_on_demand_is_pinned_at_once_and_nothing_is_made_ahead(pinned_by):
    source = Source(4)
    source.is_on_demand = True
    stream = PinnedStream(source)

    left = []
    while source.numbers:
        assert next(stream).item() == 3 - len(source.numbers)
        left.append(len(source.numbers))
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()

    assert left == [3, 2, 1, 0]
    assert pinned_by == {threading.get_ident()}


def test_the_garbage_collector_may_close_it_in_its_own_thread(pinned_by, monkeypatch):
    source = Source(1)
    stream = PinnedStream(source)
    errors = []

    def closing(tensor):
        try:
            stream.close()
        except RuntimeError as error:
            errors.append(error)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", closing)
    stream.next_if_ready()  # begins
    deadline = time.monotonic() + 10
    while not source.is_closed:
        assert time.monotonic() < deadline
        time.sleep(0.001)

    assert not errors


@pytest.mark.parametrize("num_before", range(8))
def test_what_interrupts_the_look_for_more_loses_no_batch(pinned_by, num_before):
    class Interrupted(Source):
        num_looks = 0

        def next_if_ready(self):
            self.num_looks += 1
            if self.num_looks == num_before + 1:
                raise KeyboardInterrupt
            return super().next_if_ready()

    stream = PinnedStream(Interrupted(6))

    found = []
    while True:
        try:
            found.append(next(stream).item())
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
    stream.close()

    assert found == list(range(6))


def test_an_error_of_the_source_comes_after_the_batches_before_it_and_the_rest_after_it(
    pinned_by,
):
    class Failing(Source):
        has_failed = False

        def next_if_ready(self):
            if self.numbers and self.numbers[0] == 3 and not self.has_failed:
                self.has_failed = True
                raise error
            return super().next_if_ready()

    error = ValueError("unreadable")
    stream = PinnedStream(Failing(6))

    found = [next(stream).item() for _ in range(3)]
    with pytest.raises(ValueError, match="unreadable") as raised:
        next(stream)
    rest = [next(stream).item() for _ in range(3)]
    stream.close()

    assert raised.value is error
    assert (found, rest) == ([0, 1, 2], [3, 4, 5])


def test_a_batch_that_cannot_be_pinned_is_lost_and_the_rest_comes_after_it(
    pinned_by, monkeypatch
):
    def pin(tensor):
        if tensor.item() == 2:
            raise error
        return tensor

    error = ValueError("no room")
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    stream = PinnedStream(Source(5))

    seen = [next(stream).item() for _ in range(2)]
    with pytest.raises(LostBatchError, match="no room") as raised:
        next(stream)
    rest = [next(stream).item() for _ in range(2)]
    stream.close()

    assert raised.value.reason is error
    assert (seen, rest) == ([0, 1], [3, 4])
