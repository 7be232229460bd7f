"""A lock of threads that no fork can leave locked."""

import os
import pickle
import threading

import pytest

from fastloader.shm import ProcessLock


def test_one_thread_at_a_time_has_it():
    lock = ProcessLock()
    order = []
    with lock:
        thread = threading.Thread(target=lambda: [lock.__enter__(), order.append("thread")])
        thread.start()
        thread.join(0.05)
        order.append("main")
    thread.join()

    assert order == ["main", "thread"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_finds_it_free_and_is_told_so():
    called = []
    lock = ProcessLock(on_fork=lambda: called.append(os.getpid()))
    with lock:
        pid = os.fork()
        if pid == 0:
            with lock:
                os._exit(0 if called == [os.getpid()] else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert not called


def test_a_pickle_is_a_free_lock():
    lock = ProcessLock()
    with lock, pickle.loads(pickle.dumps(lock)):
        pass
