"""Long runs: nothing is overwritten, and nothing grows."""

import gc
import os
import random
import threading

import psutil
import pytest
import torch

from fastloader import FastLoader
from tests.engine.datasets import Images

pytestmark = [pytest.mark.multiprocess, pytest.mark.stress]


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_batches_that_are_kept_and_dropped_at_random_keep_every_byte(workers):
    loader = FastLoader(Images(4000, shape=(3, 64, 64)), 4, num_workers=2, workers=workers)
    wrong = []

    def drop(batches, seed):
        random.Random(seed).shuffle(batches)
        while batches:
            images, labels = batches.pop()
            if not torch.equal(images, labels.float()[:, None, None, None].expand_as(images)):
                wrong.append(labels)

    threads = []
    for epoch in range(4):
        kept = list(loader)  # while the threads still drop those of the epoch before
        for share in range(4):
            mine = kept[share::4]
            threads.append(threading.Thread(target=drop, args=(mine, 4 * epoch + share)))
            threads[-1].start()
        del kept, mine
    for thread in threads:
        thread.join()

    assert not wrong


def held():
    process = psutil.Process()
    family = [process, *process.children(recursive=True)]
    return {
        "descriptors": sum(member.num_fds() for member in family),
        "mappings": len(process.memory_maps(grouped=False)),
        "threads": sum(member.num_threads() for member in family),
        "memory": sum(member.memory_full_info().uss for member in family),
    }


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}], ids=str)
def test_a_million_tiny_batches_leave_nothing_behind(options):
    count = int(os.environ.get("FASTLOADER_TINY_BATCHES", "1000000"))
    loader = FastLoader(range(count), 1, **options)
    before = None

    for number, _ in enumerate(loader):
        if number == count // 10:
            gc.collect()
            before = held()
        if number == count - 1:
            gc.collect()
            after = held()

    assert after["descriptors"] <= before["descriptors"]
    assert after["mappings"] <= before["mappings"] + 3
    assert after["threads"] <= before["threads"]
    assert after["memory"] <= before["memory"] + (4 << 20)
