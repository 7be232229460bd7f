"""Calls are made only while no other thread does anything but wait."""

import ctypes
import selectors
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import numpy as np
import pytest
import torch

from fastloader.shm import _stillness as module
from fastloader.shm._mapping_over import Call
from fastloader.shm._stillness import call_undisturbed, find_hidden_writer
from fastloader.threads._crew import Crew, row_team, rows_at


def returning(value, made):
    def function(*arguments):
        made.append(arguments)
        return value

    return function


def test_calls_are_made_in_order_until_one_returns_something_else():
    made = []
    calls = [
        Call(returning(1, made), ("first",), 1),
        Call(returning(2, made), ("second", 5), 3),
        Call(returning(1, made), ("third",), 1),
    ]

    assert not call_undisturbed(*calls)
    assert made == [("first",), ("second", 5)]
    assert call_undisturbed(calls[0])


@pytest.fixture
def beside():
    """Run functions in threads of their own until the test is over."""
    threads, is_over = [], threading.Event()

    def start(function):
        thread = threading.Thread(target=function, args=(is_over,), daemon=True)
        thread.start()
        threads.append(thread)
        time.sleep(0.05)

    yield start
    is_over.set()
    for thread in threads:
        thread.join()


def wait_for_item(is_over):
    queue = Queue()
    threading.Thread(target=lambda: queue.put(is_over.wait()), daemon=True).start()
    queue.get()


def wait_for_socket(is_over):
    here, there = socket.socketpair()
    with here, there, selectors.DefaultSelector() as selector:
        selector.register(here, selectors.EVENT_READ)
        threading.Thread(
            target=lambda: there.send(bytes([is_over.wait()])), daemon=True
        ).start()
        selector.select()


@pytest.mark.parametrize(
    "wait",
    [threading.Event.wait, wait_for_item, wait_for_socket],
    ids=["event", "queue", "socket"],
)
def test_threads_that_wait_do_not_disturb(beside, wait):
    def run(is_over):
        wait(is_over)

    beside(run)

    assert call_undisturbed(Call(int, (), 0))


def test_an_idle_executor_does_not_disturb():
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        time.sleep(0.05)
        assert call_undisturbed(Call(int, (), 0))


def compute(is_over):
    while not is_over.is_set():
        pass


def sleep(is_over):
    while not is_over.is_set():
        time.sleep(0.01)


def fill(is_over):
    array = np.zeros(1 << 22)
    while not is_over.is_set():
        array.fill(1)


@pytest.mark.parametrize("work", [compute, sleep, fill])
def test_threads_that_may_do_something_keep_all_from_being_called(beside, work):
    beside(work)
    made = []

    assert not any(call_undisturbed(Call(returning(0, made), (), 0)) for _ in range(20))
    assert not made


def test_a_function_of_c_in_an_executor_disturbs():
    sleeping = ctypes.CDLL(None).usleep
    with ThreadPoolExecutor(1) as executor:
        executor.submit(sleeping, 300_000)
        time.sleep(0.05)
        assert not call_undisturbed(Call(int, (), 0))


def test_a_thread_that_woke_up_after_the_look_disturbs(monkeypatch):
    # It waits again, in the same function, by the time the calls would be made.
    turn, woken = Queue(), threading.Event()

    def wait_twice():
        turn.get()
        woken.set()
        turn.get()

    thread = threading.Thread(target=wait_twice, daemon=True)
    thread.start()
    time.sleep(0.05)
    looked = module._all_others_wait

    def look_and_wake(frames):
        are_waiting = looked(frames)
        turn.put(None)
        woken.wait()
        time.sleep(0.05)
        return are_waiting

    with monkeypatch.context() as patched:
        patched.setattr(module, "_all_others_wait", look_and_wake)
        assert not call_undisturbed(Call(int, (), 0))
    assert call_undisturbed(Call(int, (), 0))
    turn.put(None)
    thread.join()


@pytest.fixture
def process(tmp_path):
    """Return a directory like that of a process with nothing but files open."""
    (tmp_path / "fd").mkdir()
    (tmp_path / "status").write_text("VmLck:\t       0 kB\nVmPin:\t       0 kB\n")
    (tmp_path / "maps").write_text("7f00-7f10 rw-p 00000000 00:00 0 \n")
    for number, target in enumerate(["/dev/null", "/dev/pts/3", "/data/x", "socket:[5]"]):
        (tmp_path / "fd" / str(number)).symlink_to(target)
    return tmp_path


def test_an_ordinary_process_has_no_hidden_writer(process):
    assert find_hidden_writer(process) is None
    assert find_hidden_writer() is None


@pytest.mark.parametrize(
    "target", ["/dev/nvidia0", "/dev/kfd", "/dev/infiniband/uverbs0", "anon_inode:[io_uring]"]
)
def test_whoever_gets_at_memory_by_itself_is_found(process, target):
    (process / "fd" / "9").symlink_to(target)

    assert ("io_uring" if "io_uring" in target else target) in find_hidden_writer(process)


@pytest.mark.parametrize("field", ["VmLck", "VmPin"])
def test_locked_memory_is_found(process, field):
    (process / "status").write_text(f"{field}:\t      64 kB\n")

    assert "locked" in find_hidden_writer(process)


def test_reading_in_the_background_is_found(process):
    (process / "maps").write_text("7f00-7f10 rw-s 00000000 00:0a 77 /[aio]\n")

    assert "aio" in find_hidden_writer(process)


def test_a_system_that_does_not_tell_is_not_trusted(tmp_path):
    assert "does not tell" in find_hidden_writer(tmp_path)


@pytest.mark.skipif(row_team() is None, reason="was not compiled")
def test_threads_that_stand_by_to_copy_do_nothing_else():
    source, target = torch.arange(1 << 20), torch.empty(1 << 20, dtype=torch.int64)
    crew = Crew(2)
    rows = rows_at([source.data_ptr()], source.nbytes, target.data_ptr())
    for _ in range(3):
        crew.copy_rows(rows, 2)

    num_threads = sum(one.name == "fastloader-crew" for one in threading.enumerate())
    is_undisturbed = call_undisturbed(Call(int, (), 0))
    crew.close()

    assert num_threads == 2
    assert is_undisturbed
    assert torch.equal(source, target)
