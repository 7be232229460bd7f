"""One thread computes alone in a block; the others, and it afterwards, as before."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from fastloader.threads._openmp import without_openmp


def test_the_thread_computes_alone_in_the_block_only():
    before = torch.get_num_threads()

    with without_openmp():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_other_threads_keep_their_number():
    before, seen = torch.get_num_threads(), []

    with without_openmp():
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()

    assert seen == [before]


def test_draws_are_the_same():
    expected = torch.randperm(100_000, generator=torch.Generator().manual_seed(3))

    with without_openmp():
        found = torch.randperm(100_000, generator=torch.Generator().manual_seed(3))

    assert torch.equal(found, expected)


FORKS = """
import multiprocessing
import os
import signal
import numpy as np
import torch
from torch.utils.data import TensorDataset
from fastloader import FastLoader

def fork_after_gathers(step):
    torch.set_num_threads(2)
    images = torch.from_numpy(np.zeros((1024, 8192), np.uint8))[:, ::step]
    for _ in FastLoader(TensorDataset(images), 256, num_workers=0):
        pass
    assert torch.get_num_threads() == 2
    for _ in range(2):
        child = os.fork()
        if not child:
            signal.alarm(30)
            os._exit(int(torch.ones(1_000_000).add(1).sum()) != 2_000_000)
        assert os.waitpid(child, 0)[1] == 0
        for _ in FastLoader(TensorDataset(images), 256, num_workers=0):
            pass

for step in (1, 2):  # rows are gathered by ourselves, and by torch
    process = multiprocessing.get_context("fork").Process(target=fork_after_gathers, args=(step,))
    process.start()
    process.join()
    assert process.exitcode == 0, step
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("kernels", ["0", "1"], ids=["not compiled", "compiled"])
def test_a_child_that_is_forked_after_a_gather_can_compute(kernels):
    environment = {**os.environ, "FASTLOADER_KERNELS": kernels}
    command = [sys.executable, "-c", FORKS]
    subprocess.run(command, check=True, timeout=120, env=environment)
