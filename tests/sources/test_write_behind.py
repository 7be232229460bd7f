"""Batches are written in order while others are decoded, and errors are not lost."""

import threading

import pytest

from fastloader.sources._write_behind import WriteBehind

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.mark.parametrize("in_thread", [False, True])
def test_every_batch_is_written_in_order(in_thread):
    written = []

    with WriteBehind(
        lambda batch, rows: written.append((batch, rows)), in_thread=in_thread
    ) as behind:
        for number in range(20):
            behind(number, -number)

    assert written == [(number, -number) for number in range(20)]


def test_no_more_than_one_batch_waits():
    started, go_on = threading.Semaphore(0), threading.Event()

    def write(batch, rows):
        started.release()
        go_on.wait(10)

    with WriteBehind(write, in_thread=True) as behind:
        behind(0, None)
        started.acquire()
        caller = threading.Thread(target=behind, args=(1, None))
        caller.start()
        caller.join(0.1)
        assert caller.is_alive()
        go_on.set()
        caller.join()


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("bad", [0, 4])
def test_an_error_of_any_batch_is_raised(in_thread, bad):
    def write(batch, rows):
        if batch == bad:
            raise KeyError("pixels")

    with pytest.raises(KeyError, match="pixels"):
        write_five(write, in_thread)


def write_five(write, in_thread):
    with WriteBehind(write, in_thread=in_thread) as behind:
        for number in range(5):
            behind(number, None)
