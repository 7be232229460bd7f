"""Processes end, and take their workers with them, whatever these do about signals."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
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


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_forked_child_that_exits_leaves_the_workers_of_its_parent_alone(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(method=method))

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=True
    )

    assert done.stdout == "10 10\n"
    assert not done.stderr


SCRIPT = """
import os, sys
from fastloader import FastLoader

if __name__ == "__main__":
    loader = FastLoader(list(range(40)), 4, num_workers=1, multiprocessing_context="{method}")
    list(loader)
    child = os.fork()
    if not child:
        sys.exit(len(list(loader)))  # of workers of its own
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), len(list(loader)))
"""


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


def test_workers_end_with_a_killed_process_whose_other_child_lives_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(KILLED_SCRIPT)

    done = subprocess.run(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, timeout=100, check=False
    )

    worker, sibling = map(int, done.stdout.split())
    sibling = psutil.Process(sibling)
    try:
        workers = [psutil.Process(worker)] if psutil.pid_exists(worker) else []
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert not alive
        assert sibling.is_running()
    finally:
        sibling.kill()


KILLED_SCRIPT = """
import multiprocessing, os, signal, time
from fastloader import FastLoader
from fastloader.engine import _frames

_frames.LIVENESS_SECONDS = 0.1
iterator = iter(FastLoader(list(range(40)), 4, num_workers=1, multiprocessing_context="fork"))
next(iterator)
sibling = os.fork()
if not sibling:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(multiprocessing.active_children()[0].pid, sibling, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs signals of pipes")
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_end_with_a_killed_process_in_the_middle_of_a_sample(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(BUSY_SCRIPT)

    done = subprocess.run(
        [sys.executable, script, method],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == -signal.SIGTERM, done.stderr
    workers = [
        psutil.Process(int(pid)) for pid in done.stdout.split() if psutil.pid_exists(int(pid))
    ]
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive


BUSY_SCRIPT = """
import multiprocessing, os, signal, sys, time
from fastloader import FastLoader

class Slow:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index > 1:
            time.sleep(300)
        return index

if __name__ == "__main__":
    loader = FastLoader(Slow(), 1, num_workers=2, multiprocessing_context=sys.argv[1])
    iterator = iter(loader)
    next(iterator), next(iterator)
    print(*[process.pid for process in multiprocessing.active_children()], flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
"""
