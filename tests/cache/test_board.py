"""Flags and claims, seen by all processes that have the memory file."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from fastloader.cache._board import FillBoard
from fastloader.shm import MemoryFile
from tests.start_methods import START_METHODS

EDGES = np.array([0, 3, 4, 10])


@pytest.fixture
def board():
    with MemoryFile.create(8 + 10) as file:
        yield FillBoard(file, 8, EDGES)


def test_nothing_is_ready_at_first(board):
    assert board.num_units == 3
    assert board.num_ready == 0
    assert not board.is_full()
    assert board.missing(np.array([9, 0])).tolist() == [9, 0]


def test_images_belong_to_units(board):
    assert board.units_of(np.array([9, 0, 3, 4])) == [0, 1, 2]
    assert board.images_of(0, 2) == slice(0, 4)


def test_ready_units_are_those_with_all_images(board):
    board.set_ready(slice(0, 3))
    board.set_ready(5)

    assert board.ready_units().tolist() == [True, False, False]
    assert board.num_ready == 4
    assert board.missing(np.array([2, 4, 5])).tolist() == [4]


def test_it_is_full_when_all_are_ready(board):
    board.set_ready(slice(0, 10))

    assert board.is_full()


def test_a_board_without_images_is_full():
    with MemoryFile.create(8) as file:
        board = FillBoard(file, 0, np.array([0]))

        assert board.is_full()
        assert board.ready_units().tolist() == []


def test_a_unit_is_claimed_by_one_thread_at_a_time(board):
    def claim():
        with board.claim([0, 1]) as claimed:
            found.append(claimed)

    found = []
    with board.claim([1, 2]) as mine:
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join()
    with board.claim([1]) as again:
        pass

    assert (mine, found, again) == ([1, 2], [[0]], [1])


def test_an_error_gives_a_claim_back(board):
    with pytest.raises(ZeroDivisionError), board.claim([0]):
        raise ZeroDivisionError
    with board.claim([0]) as claimed:
        assert claimed == [0]


def claim_and_wait(board, connection):
    with board.claim([0, 1, 2]) as claimed:
        board.set_ready(7)
        connection.send(claimed)
        time.sleep(60)


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_claim_ends_with_its_process_however_that_ends(board, start_method):
    context = multiprocessing.get_context(start_method)
    here, there = context.Pipe()
    process = context.Process(target=claim_and_wait, args=(board, there))
    with board.claim([2]):
        process.start()
        assert here.recv() == [0, 1]
    with board.claim([0, 1, 2]) as claimed:
        assert claimed == [2]
    assert board.missing(np.arange(10)).tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9]

    os.kill(process.pid, signal.SIGKILL)
    process.join()

    with board.claim([0, 1, 2]) as claimed:
        assert claimed == [0, 1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_none_of_its_parents_claims(board):
    with board.claim([0]):
        pid = os.fork()
        if pid == 0:
            with board.claim([0, 1]) as claimed:
                os._exit(0 if claimed == [1] else 1)
        assert os.waitpid(pid, 0)[1] == 0
