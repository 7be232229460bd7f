"""Ctrl-C while a batch is on its way to the caller comes after it, and loses nothing."""

import gc
import signal
import threading

import pytest
import torch

from fastloader import FastLoader
from fastloader.threads._held_interrupts import HeldInterrupts, held_interrupts
from tests.resume.datasets import Numbers

pytestmark = pytest.mark.usefixtures("interruptible")


class Interrupting:
    """Gives lists of indices, and is interrupted once when it is asked for a later one."""

    def __init__(self, place):
        self.place = place

    def __iter__(self):
        for number in range(10):
            if number == self.place:
                self.place = None
                signal.raise_signal(signal.SIGINT)
            yield [2 * number, 2 * number + 1]

    def __len__(self):
        return 10


class Once:
    """A function of a batch that is interrupted at its third call."""

    num_calls = 0

    def __call__(self, batch):
        self.num_calls += 1
        if self.num_calls == 3:
            signal.raise_signal(signal.SIGINT)
        return batch


def read_all(loader):
    """Return the batches, how often there was an interrupt, and the state after the first."""
    iterator = iter(loader)
    batches, states = [], []
    while True:
        try:
            batches.append(next(iterator))
        except KeyboardInterrupt:
            states.append((len(batches), loader.state_dict()))
        except StopIteration:
            return batches, states


@pytest.mark.parametrize("workers", ["processes", "threads"])
@pytest.mark.parametrize("place", [5, 6, 9])
def test_an_interrupted_order_loses_no_batch(workers, place):
    def make(place):
        return FastLoader(
            Numbers(20), batch_sampler=Interrupting(place), num_workers=2, workers=workers
        )

    batches, [(num_read, state)] = read_all(make(place))

    assert torch.cat(batches).tolist() == list(range(20))
    resumed = make(None)
    resumed.load_state_dict(state)
    assert torch.cat(list(resumed)).tolist() == list(range(2 * num_read, 20))


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_batch_that_is_interrupted_as_it_is_given_comes_with_the_next_call(workers):
    loader = FastLoader(Numbers(20), 2, num_workers=2, workers=workers, device_transform=Once())

    batches, states = read_all(loader)

    assert len(states) == 1
    assert torch.cat(batches).tolist() == list(range(20))


def test_a_pass_that_is_closed_gives_no_batch_that_was_kept():
    loader = FastLoader(Numbers(20), 2, num_workers=2, device_transform=Once())
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)

    iterator.close()

    with pytest.raises(StopIteration):
        next(iterator)


def test_nothing_is_held_back_before_the_begin():
    held = HeldInterrupts()
    held.hold()

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_is_not_held_back():
    held = HeldInterrupts()
    held.begin()
    held.hold()
    signal.raise_signal(signal.SIGINT)
    assert held.received

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

    assert not held.received
    held.end()


def test_an_interrupt_is_let_through_before_a_wait_and_can_be_held_again():
    held = HeldInterrupts()
    held.begin()
    for _ in range(2):
        held.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            held.let_through()
    held.end()


def test_a_handler_that_was_set_meanwhile_stays():
    held = HeldInterrupts()
    held.begin()
    held.hold()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    held.end()

    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_neither_hold_back_nor_let_through():
    held = HeldInterrupts()
    held.begin()
    held.hold()
    signal.raise_signal(signal.SIGINT)
    thread = threading.Thread(target=lambda: (held.begin(), held.hold(), held.end()))
    thread.start()
    thread.join()

    with pytest.raises(KeyboardInterrupt):
        held.end()


def test_a_finalizer_lets_nothing_through_and_holds_nothing_back():
    held = HeldInterrupts()
    held.begin()
    held.hold()
    signal.raise_signal(signal.SIGINT)
    with held.left_alone():
        held.let_through()

    with pytest.raises(KeyboardInterrupt):
        held.let_through()

    with held.left_alone():
        held.hold()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    held.end()


@pytest.mark.parametrize("keeps", ["workers", "pass"])
def test_workers_that_are_collected_while_interrupts_are_held_back_lose_none(keeps):
    loader = FastLoader(Numbers(20), 2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    if keeps == "workers":
        list(iterator)

    held_interrupts.begin()
    held_interrupts.hold()
    signal.raise_signal(signal.SIGINT)
    del loader, iterator
    gc.collect()

    with pytest.raises(KeyboardInterrupt):
        held_interrupts.end()
