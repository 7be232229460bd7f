"""Statistics reach loggers while a loader is used."""

import logging
import sys
import time

import pytest

from fastloader import FastLoader
from fastloader.errors import MissingExtraError
from fastloader.stats import log_stats


def test_snapshots_come_while_the_block_runs_and_at_its_end(no_leaks):
    loader = FastLoader(range(40), 4, num_workers=0)
    seen = []

    with log_stats(loader, every_seconds=0.01, to=seen.append):
        for _ in loader:
            time.sleep(0.01)

    assert len(seen) > 2
    assert seen[-1].num_batches == 10
    assert [one.num_batches for one in seen] == sorted(one.num_batches for one in seen)


def test_a_line_is_logged(caplog):
    loader = FastLoader(range(40), 4, num_workers=0)

    with caplog.at_level(logging.INFO, "fastloader"), log_stats(loader):
        list(loader)

    assert "Loading: num_batches 10, wait_share" in caplog.text


def test_memory_is_measured_where_asked():
    loader = FastLoader(range(4), 2)
    assert loader.stats.snapshot().memory_bytes is None

    loader.stats.also_measure(memory=True)

    assert loader.stats.snapshot().as_dict()["memory_bytes"] > 1e6


def test_a_gpu_cannot_be_asked_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(MissingExtraError, match=r"fastloader\[gpu\]"):
        FastLoader(range(4), 2).stats.also_measure(gpu=True)
