"""A fork waits for threads that a child could not live without."""

import os
import threading
import time

import pytest

from fastloader.threads._fork_gate import ForkGate

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def fork(is_right=lambda: True):
    """Fork a child that ends at once, and tells what it finds in its memory."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if is_right() else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_waits_until_the_gate_is_let_go():
    gate = ForkGate()
    order = []

    def work():
        with gate:
            is_held.set()
            time.sleep(0.05)
            order.append("work")

    is_held = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    is_held.wait()
    fork(is_right=lambda: order == ["work"])
    thread.join()


def test_a_pause_lets_a_fork_through():
    gate = ForkGate()
    is_done = threading.Event()

    def work():
        with gate:
            is_held.set()
            while not is_done.is_set():
                time.sleep(0.001)
                gate.pause()

    is_held = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    is_held.wait()
    for _ in range(5):
        fork()
    is_done.set()
    thread.join()

    assert not thread.is_alive()


def test_the_thread_that_holds_a_gate_may_fork():
    with ForkGate():
        fork()


def test_several_threads_may_fork_at_once():
    gate = ForkGate()
    threads = [threading.Thread(target=lambda: [fork() for _ in range(5)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    with gate:
        assert not any(thread.is_alive() for thread in threads)


def test_the_gate_is_open_in_a_child():
    gate = ForkGate()
    with gate:
        pid = os.fork()
        if pid == 0:
            taken = []
            thread = threading.Thread(target=lambda: taken.append(gate.__enter__()))
            thread.start()
            thread.join(5)
            os._exit(0 if taken else 1)
        assert os.waitpid(pid, 0)[1] == 0
