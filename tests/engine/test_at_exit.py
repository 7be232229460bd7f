"""Processes end, and take their workers with them, whatever these do about signals."""

import multiprocessing
import os
import signal
import time

import pytest

from fastloader import FastLoader

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("no_leaks")]


class Steady:
    """Takes its time, so that workers are busy when something happens."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.01)
        return index


def turn_deaf(worker):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


kept = []


def leave_an_iterator():
    kept.append(iter(FastLoader(Steady(), num_workers=1, worker_init_fn=turn_deaf)))
    next(kept[0])


def test_a_process_ends_though_its_workers_do_not_listen():
    process = multiprocessing.get_context("fork").Process(target=leave_an_iterator)
    process.start()

    process.join(20)
    if has_hung := process.is_alive():
        process.kill()
        process.join()

    assert not has_hung
    assert process.exitcode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2], ids=str)
def test_workers_stay_when_the_consumer_handles_the_signal_that_its_group_gets(number):
    before = signal.signal(number, lambda *_: None)
    try:
        loader = FastLoader(Steady(), batch_size=4, num_workers=2)
        batches = iter(loader)
        seen = next(batches).tolist()
        for process in multiprocessing.active_children():
            os.kill(process.pid, number)

        seen += [index for batch in batches for index in batch.tolist()]
    finally:
        signal.signal(number, before)

    assert seen == list(range(40))
