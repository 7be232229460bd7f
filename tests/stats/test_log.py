"""Statistics reach loggers while a loader is used."""

import logging
import sys
import time
from types import ModuleType

import pytest
import torch

from fastloader import FastLoader
from fastloader.errors import MissingExtraError, SettingsError
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


def test_a_block_goes_on_when_its_log_fails(caplog):
    loader = FastLoader(range(40), 4, num_workers=0)
    seen = []

    def fail(snapshot):
        seen.append(snapshot)
        raise OSError("disk full")

    with log_stats(loader, every_seconds=0.01, to=fail):
        time.sleep(0.1)
    with pytest.raises(KeyError, match="of the block"), log_stats(loader, to=fail):
        raise KeyError("of the block")

    assert len(seen) == 2
    assert caplog.text.count("Statistics are not logged any more.") == 2
    assert "disk full" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"loader": [1]}, "needs a FastLoader or a MixedLoader, but got list"),
        ({"every_seconds": 0}, "a number over 0, but got 0"),
        ({"every_seconds": float("nan")}, "a number over 0, but got nan"),
        ({"to": "file"}, "to should be a function or None, but got 'file'"),
    ],
    ids=["loader", "zero", "nan", "to"],
)
def test_what_cannot_be_logged_is_refused(arguments, text):
    with (
        pytest.raises(SettingsError, match=text),
        log_stats(**({"loader": FastLoader([1], 1)} | arguments)),
    ):
        pass


def test_memory_is_measured_where_asked():
    loader = FastLoader(range(4), 2)
    assert loader.stats.snapshot().memory_bytes is None

    loader.stats.also_measure(memory=True)

    assert loader.stats.snapshot().as_dict()["memory_bytes"] > 1e6


def test_a_gpu_cannot_be_asked_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(MissingExtraError, match=r"fastloader\[gpu\]"):
        FastLoader(range(4), 2).stats.also_measure(gpu=True)


def test_a_gpu_that_is_not_there_is_not_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stats = FastLoader(range(4), 2).stats

    with pytest.raises(SettingsError, match="there is none: leave it out"):
        stats.also_measure(gpu=True)

    assert stats.snapshot().gpu_share is None


def test_how_busy_a_gpu_is_is_told_where_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", ModuleType("pynvml"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "utilization", lambda: 37)
    stats = FastLoader(range(4), 2).stats

    stats.also_measure(gpu=True)

    assert stats.snapshot().as_dict("loader/")["loader/gpu_share"] == 0.37
