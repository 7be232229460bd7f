"""Copies keep the order of their batches, and what they read until they are over."""

import threading
import time
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fastloader.direct import HostRows
from fastloader.stages import (
    MOST_UNDER_WAY,
    LostBatchError,
    copied_ahead,
    copied_ahead_and_cut,
    copied_to,
    lock_pages,
)
from fastloader.stages._device import _parts_in_memory
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import Merged
from fastloader.threads._standby import Standby, StandbyKeeper

CPU = torch.device("cpu")


class Device:
    """What torch has for a kind of device, with copies that end when they are told to."""

    def __init__(self):
        self.waited_in = set()
        self.copied_in = set()
        self.num_waits = 0
        self.num_streams = 0
        self.copies_end = True
        self.errors = []
        """Raised by the next calls that wait, one by one; None for a call that goes well."""
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                self.has_time = enable_timing

            def elapsed_time(self, other):
                assert self.has_time
                assert other.has_time
                return 2.5

            def record(self, _stream):
                device.copied_in.add(threading.get_ident())

            def query(self):
                return device.copies_end

            def synchronize(self):
                device.num_waits += 1
                if device.errors and (error := device.errors.pop(0)) is not None:
                    raise error

        self.Event = Event

    def Stream(self, device):  # noqa: N802 - torch's name
        self.num_streams += 1
        return self

    def synchronize(self):
        pass

    def current_stream(self, _device):
        return self

    def wait_event(self, _event):
        self.waited_in.add(threading.get_ident())

    def device(self, _device):
        return nullcontext()

    stream = device


class Source:
    """Batches of one number each, those of them that are still held counted."""

    is_on_demand = False

    def __init__(self, count, error_at=None):
        self.numbers = iter(range(count))
        self.error_at = error_at
        self.is_closed = False

    def __next__(self):
        number = next(self.numbers)
        if number == self.error_at:
            raise ValueError(number)
        return {"number": torch.tensor([number])}

    def next_if_ready(self):
        try:
            return [next(self)]
        except StopIteration:
            return []

    def queue(self):
        return QueueState()

    def close(self):
        self.is_closed = True


@pytest.fixture
def device(monkeypatch):
    fake = Device()
    monkeypatch.setattr(torch, "get_device_module", lambda _device: fake)
    return fake


@pytest.fixture
def keeper():
    keeper = StandbyKeeper()
    yield keeper
    keeper.close()


@pytest.fixture(params=["by the consumer", "by a thread"])
def copied(request, keeper):
    if request.param == "by the consumer":
        return copied_to
    return lambda source, device: copied_ahead(source, device, 2, Standby(keeper))


def numbers_of(stream):
    while True:
        try:
            yield next(stream)["number"].item()
        except StopIteration:
            return


def test_batches_come_in_order(no_leaks, device, copied):
    source = Source(20)
    stream = copied(source, CPU)

    assert list(numbers_of(stream)) == list(range(20))

    stream.close()
    assert source.is_closed


def test_a_stream_can_be_left(no_leaks, device, copied):
    source = Source(20)
    stream = copied(source, CPU)
    next(stream)

    stream.close()

    assert source.is_closed


def test_an_error_comes_at_its_batch_and_the_rest_after_it(device, copied):
    stream = copied(Source(9, error_at=5), CPU)

    seen = [next(stream)["number"].item() for _ in range(5)]
    with pytest.raises(ValueError, match="5"):
        next(stream)
    rest = list(numbers_of(stream))
    stream.close()

    assert (seen, rest) == ([0, 1, 2, 3, 4], [6, 7, 8])


class Part:
    """A part of a batch that moves by itself, or raises what it is told to."""

    errors: ClassVar[list] = []

    def __init__(self, number):
        self.number = number

    def to(self, _device, **_options):
        if Part.errors and (error := Part.errors.pop(0)) is not None:
            raise error
        return torch.tensor([self.number])


class PartSource(Source):
    def __next__(self):
        return {"number": Part(next(self.numbers))}


def test_a_batch_that_cannot_be_copied_is_lost_and_the_rest_comes_after_it(device, copied):
    error = ValueError("no way to move")
    Part.errors = [None, None, error]
    stream = copied(PartSource(6), CPU)

    seen = [next(stream)["number"].item() for _ in range(2)]
    with pytest.raises(LostBatchError, match="no way to move") as raised:
        next(stream)
    rest = list(numbers_of(stream))
    stream.close()

    assert raised.value.reason is error
    assert (seen, rest) == ([0, 1], [3, 4, 5])


def test_one_batch_is_read_ahead_of_a_source_that_makes_them_on_demand(device):
    class Counting(Source):
        is_on_demand = True
        num_made = 0

        def __next__(self):
            batch = super().__next__()
            self.num_made += 1
            return batch

    source = Counting(5)
    stream = copied_to(source, CPU)

    made = [source.num_made for _ in numbers_of(stream)]
    stream.close()

    assert made == [2, 3, 4, 5, 5]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.OutOfMemoryError("none left")])
@pytest.mark.parametrize("num_before", [0, 1, 2, 3, 4])
def test_a_batch_whose_copy_was_interrupted_is_copied_again(device, error, num_before):
    stream = copied_to(PartSource(8), CPU)
    Part.errors = [None] * num_before + [error, error]

    seen = []
    while True:
        try:
            seen.extend(numbers_of(stream))
            break
        except (KeyboardInterrupt, torch.OutOfMemoryError):
            pass
    stream.close()

    assert seen == list(range(8))


def test_a_device_without_memory_is_asked_again_by_a_thread(device, keeper):
    error = torch.OutOfMemoryError("none left")
    Part.errors = [None] * 3 + [error] + [None] * 2 + 2 * [error]
    stream = copied_ahead(PartSource(8), CPU, 2, Standby(keeper))

    # That there was none ahead is no matter if there is when the batch is asked for.
    seen = [next(stream)["number"].item() for _ in range(5)]
    with pytest.raises(torch.OutOfMemoryError):
        next(stream)
    seen.extend(numbers_of(stream))
    stream.close()

    assert seen == list(range(8))


def test_merged_batches_for_which_there_is_no_memory_are_copied_in_parts(device, keeper):
    class Column:
        row_bytes = 8

        def copy_to(self, _device, positions):
            if len(positions) > 3:
                raise torch.OutOfMemoryError("none left")
            return torch.from_numpy(positions) * 10

    class OfRows(Source):
        def __next__(self):
            rows = HostRows(Column(), np.arange(9) + 9 * next(self.numbers))
            return Merged({"number": rows}, np.array([2, 2, 2, 2, 1]))

    asked = []
    stream = copied_ahead_and_cut(
        OfRows(2), CPU, 2, Standby(keeper), lambda: asked.append(None)
    )

    found = [next(stream)["number"].tolist() for _ in range(10)]
    stream.close()

    assert [10 * number for number in range(18)] == [value for one in found for value in one]
    assert [len(one) for one in found] == [2, 2, 2, 2, 1] * 2
    assert asked


def test_a_single_batch_for_which_there_is_no_memory_waits_for_it(device, keeper):
    class OfOne(Source):
        def __next__(self):
            return Merged({"number": Part(next(self.numbers))}, np.array([1]))

    Part.errors = 2 * [torch.OutOfMemoryError("none left")]
    stream = copied_ahead_and_cut(OfOne(3), CPU, 2, Standby(keeper), lambda: None)

    with pytest.raises(torch.OutOfMemoryError):
        next(stream)
    assert list(numbers_of(stream)) == [0, 1, 2]
    stream.close()


def test_copies_ahead_leave_the_last_memory_to_the_consumer(device):
    stream = copied_to(PartSource(4), CPU)
    Part.errors = [None, torch.OutOfMemoryError("none left"), None]

    assert list(numbers_of(stream)) == [0, 1, 2, 3]
    stream.close()


@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_who_interrupts_the_waiting_for_a_copy_gets_the_batch_afterwards(
    device, copied, num_before
):
    class Live(Source):
        def __next__(self):
            return {"number": HostRows(Rows(), np.array([next(self.numbers)]))}

    device.copies_end = False
    stream = copied(Live(6), CPU)
    device.errors = [None] * num_before + [KeyboardInterrupt()]

    seen = []
    with pytest.raises(KeyboardInterrupt):
        seen.extend(numbers_of(stream))
    seen.extend(numbers_of(stream))
    stream.close()

    assert seen == [0, 10, 20, 30, 40, 50]


def test_few_copies_are_under_way_at_once(device, copied):
    device.copies_end = False
    stream = copied(Source(20), CPU)

    for taken in range(1, 11):
        next(stream)
        assert stream.queue().num_copies <= MOST_UNDER_WAY
        assert device.num_waits >= taken - MOST_UNDER_WAY
    stream.close()


def test_what_is_over_is_let_go(device, copied):
    stream = copied(Source(20), CPU)

    list(numbers_of(stream))

    assert stream.queue().num_copies <= 1
    stream.close()


def test_a_thread_copies_and_the_consumer_waits_for_the_copies(device, keeper):
    device.copies_end = False
    stream = copied_ahead(Source(5), CPU, 2, Standby(keeper))

    list(numbers_of(stream))
    stream.close()

    assert device.waited_in == {threading.get_ident()}
    assert threading.get_ident() not in device.copied_in


def test_the_next_batches_are_made_while_the_consumer_is_at_work_with_the_first(device, keeper):
    stream = copied_ahead(Source(20), CPU, 2, Standby(keeper))

    next(stream)

    deadline = time.monotonic() + 10
    while stream.queue().num_ready < 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    stream.close()


def test_all_passes_copy_on_one_stream(device, copied):
    for _ in range(3):
        stream = copied(Source(5), CPU)
        list(numbers_of(stream))
        stream.close()

    assert device.num_streams == 1


def test_copies_are_timed_where_that_is_asked_for(device):
    seconds = deque()
    stream = copied_to(Source(5), CPU, seconds)

    list(numbers_of(stream))
    stream.close()

    assert list(seconds) == [0.0025] * 5


class Rows:
    """A column of numbers in host memory."""

    row_bytes = 8

    def copy_to(self, _device, positions):
        return torch.from_numpy(positions) * 10


@pytest.mark.parametrize(
    ("make", "num_waits"),
    [
        (lambda positions: HostRows(Rows(), positions), 3),
        (lambda positions: torch.from_numpy(positions) * 10, 0),
    ],
    ids=["the caller's", "made"],
)
def test_only_copies_of_the_callers_own_data_are_waited_for(device, copied, make, num_waits):
    class Merged(Source):
        def __next__(self):
            positions = np.array([next(self.numbers)])
            return {"number": make(positions)}

    device.copies_end = False
    stream = copied(Merged(3), CPU)

    assert list(numbers_of(stream)) == [0, 10, 20]
    assert device.num_waits == num_waits
    stream.close()


def test_copies_that_are_over_are_not_waited_for(device, copied):
    stream = copied(Source(5), CPU)

    list(numbers_of(stream))
    stream.close()

    assert not device.waited_in
    assert not device.num_waits


def test_memory_that_an_interrupted_call_has_locked_is_locked_anew(monkeypatch, caplog):
    locked = {4096: "the interrupted call's"}

    def register(address, size_bytes, _flags):
        if address in locked:
            return 712
        locked[address] = size_bytes
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=locked.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda status: 1 // (status == 0))
    monkeypatch.setattr("fastloader.stages._locked_pages._forget_last_error", lambda: None)

    unlock = lock_pages(4096, 8192)
    assert locked == {4096: 8192}
    unlock()

    assert not locked
    assert not caplog.records


@pytest.mark.filterwarnings("ignore")  # most layouts are in beta, or deprecated
@pytest.mark.parametrize(
    "layout", ["strided", "sparse_coo", "sparse_csr", "sparse_csc", "nested", "quantized"]
)
def test_the_memory_of_tensors_of_any_layout_is_known(layout):
    if layout == "quantized":
        tensor = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    elif layout == "nested":
        tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    else:
        tensor = (
            torch.eye(3).to_sparse(layout=getattr(torch, layout))
            if layout != "strided"
            else torch.eye(3)
        )

    parts = _parts_in_memory(tensor)

    assert all(type(part) is torch.Tensor and not part.is_nested for part in parts)
    assert all(part.layout is torch.strided and not part.is_quantized for part in parts)
