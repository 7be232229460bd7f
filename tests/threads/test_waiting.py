"""Waiting for another thread, which Ctrl-C may end."""

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fastloader.threads._held_interrupts import held_interrupts
from fastloader.threads._waiting import wait_for


@pytest.fixture(autouse=True)
def handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_it_returns_when_the_future_is_done_whatever_came_of_it():
    with ThreadPoolExecutor(1) as executor:
        failing = executor.submit(lambda: 1 / 0)
        wait_for(failing)
        assert failing.done()
        wait_for(failing)


def test_an_interrupt_comes_while_it_waits_and_it_can_wait_again():
    future = Future()
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGINT))
    held_interrupts.begin()
    interrupt.start()

    with pytest.raises(KeyboardInterrupt):
        wait_for(future)

    interrupt.join()
    future.set_result(1)
    wait_for(future)
    held_interrupts.end()


def test_an_interrupt_is_held_back_once_the_future_is_done():
    future = Future()
    future.set_result(1)
    held_interrupts.begin()
    wait_for(future)
    signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        held_interrupts.end()
