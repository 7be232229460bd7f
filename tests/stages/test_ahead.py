"""A thread makes batches ahead, in order, and ends when it is told to."""

import signal
import threading
import time

import numpy as np
import pytest
import torch

from fastloader.stages._ahead import AheadStream
from fastloader.stages._cut import CutStream
from fastloader.tensors._rows import Merged
from fastloader.threads._standby import Standby, StandbyKeeper

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def keeper():
    keeper = StandbyKeeper()
    yield keeper
    keeper.close()


class Counted:
    """A source of numbers that counts how many were asked for."""

    def __init__(self, length, errors_at=()):
        self.num_made = 0
        self.length = length
        self.errors_at = errors_at
        self.threads = set()
        self.is_closed = False

    def __next__(self):
        self.threads.add(threading.get_ident())
        if self.num_made == self.length:
            raise StopIteration
        self.num_made += 1
        if self.num_made in self.errors_at:
            raise KeyError("label")
        return self.num_made

    def next_if_ready(self):
        return []

    def close(self):
        self.is_closed = True


def all_of(stream):
    found = []
    while True:
        try:
            found.append(next(stream))
        except StopIteration:
            return found


def test_batches_keep_their_order(keeper):
    stream = AheadStream(Counted(20), 3, Standby(keeper))

    assert all_of(stream) == list(range(1, 21))
    stream.close()


def test_no_more_than_the_depth_is_made_ahead(keeper):
    source = Counted(20)
    stream = AheadStream(source, 2, Standby(keeper))

    next(stream)
    stream.close()

    assert source.num_made <= 3
    assert source.is_closed


def test_the_source_is_used_by_one_other_thread_alone(keeper):
    source = Counted(20)
    stream = AheadStream(source, 2, Standby(keeper))
    all_of(stream)
    stream.close()

    assert len(source.threads) == 1
    assert threading.get_ident() not in source.threads


def test_errors_come_at_their_batches_and_the_rest_after_them(keeper):
    stream = AheadStream(Counted(8, errors_at={2, 3, 5}), 2, Standby(keeper))
    found = []

    for _ in range(8):
        try:
            found.append(next(stream))
        except KeyError:
            found.append("label")

    assert found == [1, "label", "label", 4, "label", 6, 7, 8]
    assert all_of(stream) == []
    stream.close()


@pytest.mark.usefixtures("interruptible")
def test_who_interrupts_the_waiting_gets_the_batch_afterwards(keeper):
    class Slow(Counted):
        def __next__(self):
            may_go_on.wait()
            return super().__next__()

    may_go_on = threading.Event()
    stream = AheadStream(Slow(3), 2, Standby(keeper))
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    interrupt.join()
    may_go_on.set()

    assert all_of(stream) == [1, 2, 3]
    stream.close()


@pytest.mark.parametrize("place", ["thread", "crew"])
@pytest.mark.parametrize("is_last", [False, True], ids=["kept", "last"])
def test_the_garbage_collector_may_close_it_in_one_of_its_own_threads(keeper, place, is_last):
    class Closing(Counted):
        def __next__(self):
            if place == "thread":
                stream.close()
            else:
                standby.crew.do([stream.close, lambda: time.sleep(0.1)])
            return super().__next__()

    source = Closing(20)
    standby = keeper.lend()
    standby.crew.num_threads = 2
    standby.crew.do([lambda: time.sleep(0.01)] * 3)  # starts its threads
    stream = None
    if is_last:
        keeper.close()
    standby.executor.submit(wait_for, lambda: stream is not None)
    stream = AheadStream(source, 2, standby)

    wait_for(lambda: source.is_closed)

    assert source.num_made <= 1


def wait_for(is_so):
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_thread_begins_when_the_consumer_has_what_is_ready(keeper):
    source = Counted(20)
    stream = AheadStream(source, 2, Standby(keeper))

    next(stream)
    time.sleep(0.01)
    assert source.num_made == 1

    stream.begin()
    wait_for(lambda: source.num_made == 3)
    wait_for(lambda: all(one.done() for one in tuple(stream._ahead)))
    next(stream)
    stream.begin()  # something is ready
    time.sleep(0.01)
    assert source.num_made == 3

    stream.go_on()
    wait_for(lambda: source.num_made == 4)
    assert all_of(stream) == list(range(3, 21))
    stream.close()


def test_the_thread_begins_with_the_second_of_merged_batches():
    class Twos:
        def __next__(self):
            return Merged(torch.arange(4), np.array([2, 2]))

    told = []
    stream = CutStream(Twos(), lambda: told.append(None))

    counts = []
    for _ in range(5):
        next(stream)
        counts.append(len(told))

    assert counts == [0, 1, 1, 2, 2]
