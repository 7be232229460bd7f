"""Loaders with one planted fault each are diagnosed right, and sound ones get no complaint."""

import multiprocessing
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from fastloader import FastLoader
from fastloader.errors import SettingsError
from fastloader.measuring import diagnose, plot_diagnosis
from tests.measuring.planted import (
    Computed,
    Shared,
    SlowSampler,
    Stored,
    Stream,
    Threaded,
    Uneven,
    slow_collate,
    slow_transform,
)


def sleeping(seconds):
    return lambda _batch: time.sleep(seconds)


def of(kind, length, seconds, **options):
    return lambda: FastLoader(kind(length, seconds), **{"batch_size": 8, **options})


def stock(kind, length, seconds, **options):
    return lambda: DataLoader(kind(length, seconds), **{"batch_size": 8, **options})


workers = pytest.mark.multiprocess

PLANTED = [
    pytest.param(of(Computed, 200, 2e-3, num_workers=0), 0.002, "too_few_workers", id="few"),
    pytest.param(of(Stored, 200, 4e-3, num_workers=0), 0.002, "storage", id="storage"),
    pytest.param(
        of(Stored, 400, 8e-3, num_workers=1), 0.002, "storage", id="network", marks=workers
    ),
    pytest.param(
        of(Stored, 400, 3e-3, num_workers=1, workers="threads"), 0.002, "storage", id="threads"
    ),
    pytest.param(
        of(Computed, 200, 1e-5, num_workers=0, collate_fn=slow_collate),
        0.002,
        "collate",
        id="collate",
    ),
    pytest.param(
        of(Computed, 200, 1e-5, num_workers=0, batch_transform=slow_transform),
        0.002,
        "batch_transform",
        id="batch_transform",
    ),
    pytest.param(
        of(Computed, 200, 1e-5, num_workers=0, sampler=SlowSampler(200, 2e-3)),
        0.002,
        "sampler",
        id="sampler",
    ),
    pytest.param(of(Uneven, 64, 5e-4, num_workers=0), 0.002, "slow_samples", id="uneven"),
    pytest.param(
        of(Computed, 600, 1e-3, num_workers=6),
        0.02,
        "too_many_workers",
        id="many",
        marks=workers,
    ),
    pytest.param(
        stock(Computed, 16, 1e-4, batch_size=4, num_workers=2),
        0.001,
        "epoch_gap",
        id="restarts",
        marks=workers,
    ),
    pytest.param(
        of(Threaded, 300, 0, batch_size=4, num_workers=2),
        0.001,
        "cpu_oversubscription",
        id="oversubscription",
        marks=workers,
    ),
    pytest.param(of(Stream, 4000, 2e-3, num_workers=0), 0.002, "too_few_workers", id="stream"),
    pytest.param(stock(Computed, 200, 2e-3), 0.002, "too_few_workers", id="stock"),
]

SOUND = [
    pytest.param(lambda: FastLoader(TensorDataset(torch.zeros(4000, 64)), 32), id="in_memory"),
    pytest.param(of(Computed, 2000, 1e-5, num_workers=0), id="in_process"),
    pytest.param(of(Computed, 2000, 2e-5, num_workers=1), id="processes", marks=workers),
    pytest.param(of(Stored, 600, 1e-3, num_workers=4, workers="threads"), id="threads"),
    pytest.param(of(Stream, 4000, 0, num_workers=0), id="stream"),
    pytest.param(stock(Computed, 2000, 2e-5, num_workers=1), id="stock", marks=workers),
    pytest.param(of(Computed, 8, 1e-5, num_workers=0), id="epochs_of_one_batch"),
]


@pytest.mark.parametrize(("make", "step_seconds", "cause"), PLANTED)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_planted_fault_is_found(make, step_seconds, cause):
    diagnosis = diagnose(make(), step=sleeping(step_seconds), seconds=0.5)

    assert cause in diagnosis.causes, str(diagnosis)
    assert f"{cause}: " in str(diagnosis)


@pytest.mark.parametrize(
    ("kind", "make_lock"),
    [
        pytest.param("processes", multiprocessing.get_context("fork").Lock, marks=workers),
        ("threads", threading.Lock),
    ],
    ids=["processes", "threads"],
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_that_wait_for_each_other_are_told_from_slow_storage(kind, make_lock):
    loader = FastLoader(Shared(800, 4e-3, make_lock()), 8, num_workers=4, workers=kind)

    # Longer, since eight batches are under way before the first counts.
    diagnosis = diagnose(loader, step=sleeping(0.002), seconds=1.5)

    assert diagnosis.causes == ("contention",), str(diagnosis)


@pytest.mark.parametrize("make", SOUND)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_sound_loader_gets_no_complaint(make):
    diagnosis = diagnose(make(), step=sleeping(0.02), seconds=0.5)

    # Where other programs leave the loop no core, that is what is to be said.
    assert diagnosis.causes in {(), ("busy_cpus",)}, str(diagnosis)
    assert ("Nothing to complain about." in str(diagnosis)) is diagnosis.is_sound


def test_without_a_step_waiting_is_no_fault():
    diagnosis = diagnose(FastLoader(Stored(60, 2e-3), 4, num_workers=0), seconds=0.3)

    assert diagnosis.is_sound
    assert "No step was given" in str(diagnosis)


@pytest.mark.parametrize(
    ("length", "verdict"), [(8, "Epochs are too short"), (400, "give it more seconds")]
)
def test_too_little_to_judge_waiting_is_said_with_its_reason(length, verdict):
    loader = FastLoader(Stored(length, 1e-3), 8, num_workers=2, workers="threads")

    diagnosis = diagnose(loader, step=sleeping(0.1), seconds=0.2)

    assert diagnosis.measurement.stats.wait_share is None
    assert verdict in str(diagnosis)


def test_the_slowest_samples_are_named():
    loader = FastLoader(Uneven(64, 2e-4), 8, num_workers=0)

    diagnosis = diagnose(loader, step=sleeping(0.001), seconds=0.6)

    assert {index for index, _ in diagnosis.slowest_samples} & set(Uneven.SLOW)


def test_a_diagnosis_is_plain_values_for_programs():
    loader = FastLoader(TensorDataset(torch.zeros(64, 2)), 8)

    values = diagnose(loader, seconds=0.1).as_dict()

    assert values["is_sound"]
    assert values["measurement"]["num_batches"] > 0


def test_a_loader_without_batches_cannot_be_diagnosed():
    with pytest.raises(SettingsError, match="no batch"):
        diagnose(DataLoader(TensorDataset(torch.zeros(0, 2))), seconds=0.1)


def test_a_picture_shows_the_loop_and_what_a_batch_takes(tmp_path):
    pytest.importorskip("matplotlib")
    loader = FastLoader(Computed(64, 1e-3), 8, num_workers=0)
    diagnosis = diagnose(loader, step=sleeping(0.002), seconds=0.2)

    ax = plot_diagnosis(diagnosis, tmp_path / "diagnosis.svg")

    bars = [label.get_text() for label in ax.get_yticklabels()]
    widths = dict(zip(bars, (bar.get_width() for bar in ax.patches), strict=True))
    assert bars == ["the loop waits", "the loop works", "making: samples", "making: collate"]
    assert widths["making: samples"] == pytest.approx(1e3 * diagnosis.evidence.samples_seconds)
    assert [line.get_xdata()[0] for line in ax.lines] == [
        pytest.approx(1e3 * getattr(diagnosis.measurement.stats, f"next_p{share}_seconds"))
        for share in (50, 95, 99)
    ]
    assert (tmp_path / "diagnosis.svg").stat().st_size > 1000
