"""tune measures through copies, leaves everything as it was, and remembers what it found."""

import json
import multiprocessing
import random
import shutil
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import fastloader
from fastloader import FastLoader, MixedLoader
from fastloader.errors import DestinationError, EmptyEpochError, SettingsError, TuningError
from fastloader.tuning import measure_settings

pytestmark = pytest.mark.multiprocess


class Numbers(Dataset):
    def __init__(self, length=64):
        self.length = length
        self.num_reads = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.num_reads += 1
        return torch.tensor(float(index))


class Broken(Numbers):
    def __getitem__(self, index):
        raise KeyError(f"no sample {index}")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTLOADER_CACHE_DIR", str(tmp_path))
    return tmp_path


def quick(source, **options):
    """Tune as little as can be: threads and processes once each."""
    options = {"budget_seconds": 0.5, "max_workers": 1, **options}
    return measure_settings(source, **options)


def test_it_prints_a_table_and_its_result_is_used_again(capsys, folder):
    settings = fastloader.tune(Numbers(), batch_size=8, budget_seconds=0.5, max_workers=1)

    printed = capsys.readouterr().out
    assert "no workers" in printed
    assert "best after" in printed
    again = FastLoader(Numbers(), 8, settings="tuned")
    assert again.settings.num_workers == settings.num_workers
    assert again.settings.reasons["num_workers"].startswith("tuned")
    [file] = folder.rglob("*.json")
    assert json.loads(file.read_text())["measured"]["rows"][0]["label"] == "no workers"


def test_settings_that_are_not_to_be_saved_are_not(folder):
    quick(Numbers(), save=False)

    assert list(folder.iterdir()) == []


def test_they_can_be_saved_elsewhere(tmp_path):
    quick(Numbers(), cache_dir=tmp_path / "other")

    assert list((tmp_path / "other").rglob("Numbers-*.json"))


def test_dataset_generators_and_processes_are_left_as_they_were():
    dataset, generator = Numbers(), torch.Generator()
    torch.manual_seed(5)
    loader = DataLoader(dataset, 4, shuffle=True, generator=generator)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    own = generator.get_state()

    quick(loader, step=lambda _batch: (torch.rand(3), np.random.rand(), random.random()))

    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(after[0], before[0])
    assert after[1:] == before[1:]
    assert torch.equal(generator.get_state(), own)
    assert dataset.num_reads == 0
    assert multiprocessing.active_children() == []


def test_what_the_caller_decided_stays():
    report = quick(Numbers(), batch_size=4, num_workers=0, transport="torch")

    assert len(report.rows) == 1
    assert (report.settings.num_workers, report.settings.transport) == (0, "torch")
    assert report.settings.reasons["transport"] == "given"


@pytest.mark.parametrize("batch_size", [None, 2, 100], ids=str)
def test_datasets_smaller_than_a_measurement_are_read_again_and_again(batch_size):
    report = quick(Numbers(3), batch_size=batch_size, shuffle=True)

    assert report.best.rate > 0


@pytest.mark.parametrize(
    "source",
    [
        Stream(),
        TensorDataset(torch.arange(50)),
        [1, 2, 3],
        FastLoader(Numbers(), batch_sampler=[[1, 2], [3]]),
        FastLoader(
            Numbers(), 8, shuffle=True, seed=1, drop_last=True, num_workers=1, timeout=60
        ),
        FastLoader(Numbers(), 8, batches_per_epoch=2, shuffle=True),
        DataLoader(Numbers(), 8, num_workers=1, multiprocessing_context="fork"),
    ],
    ids=[
        "stream",
        "batched",
        "list",
        "batch sampler",
        "loader",
        "epochs of a length",
        "stock loader",
    ],
)
def test_any_dataset_and_any_loader_can_be_tuned(source):
    report = quick(source, save=False)

    assert report.best.rate > 0
    assert not any(row.outcome.startswith("failed") for row in report.rows)


def test_a_stream_without_shards_is_not_read_by_several_workers():
    report = measure_settings(Stream(), budget_seconds=0.5, save=False)

    assert max(row.candidate.num_workers for row in report.rows) == 1


def test_a_dataset_that_raises_is_named():
    with pytest.raises(TuningError, match=r"no sample 0.*mend what is said there"):
        quick(Broken())


def test_what_the_step_raises_comes_as_it_is():
    def step(_batch):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        quick(Numbers(), step=step)


def test_an_interrupt_leaves_no_worker_behind():
    steps = iter(range(40))

    def step(_batch):
        if next(steps, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(Numbers(), step=step, budget_seconds=20, num_workers=2, workers="processes")

    until = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


def test_a_mixture_that_one_loader_reads_can_be_tuned():
    sources = {"a": Numbers(), "b": Numbers()}

    assert quick(MixedLoader(sources, 4), save=False).best.rate > 0
    with pytest.raises(SettingsError, match="mixture of several loaders"):
        quick(MixedLoader({**sources, "c": Stream()}, 4))


def test_a_folder_that_cannot_be_written_to_is_said_before_the_time_is_spent(tmp_path):
    (tmp_path / "file").touch()
    began = time.monotonic()

    with pytest.raises(DestinationError, match="give cache_dir"):
        quick(Numbers(), cache_dir=tmp_path / "file", budget_seconds=60)

    assert time.monotonic() - began < 30


def test_a_result_that_can_no_longer_be_stored_is_returned_all_the_same(tmp_path):
    def step(_batch):
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        (tmp_path / "gone").touch()

    with pytest.warns(UserWarning, match="The result is not stored"):
        report = quick(Numbers(), step=step, cache_dir=tmp_path / "gone")

    assert report.settings.num_workers >= 0


def test_an_epoch_without_batches_is_said():
    with pytest.raises(EmptyEpochError):
        quick(Numbers(0))


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (Numbers(), {"budget_seconds": 0}, "budget_seconds must be positive"),
        (Numbers(), {"budget_seconds": float("nan")}, "budget_seconds should be"),
        (Numbers(), {"budget_seconds": "30 s"}, "budget_seconds should be"),
        (Numbers(), {"max_workers": -1}, "max_workers should be"),
        (Numbers(), {"max_workers": 1.5}, "max_workers should be"),
        (Numbers(), {"max_workers": "auto"}, "max_workers should be"),
        (Numbers(), {"memory_bytes": "2 GB"}, "memory_bytes should be"),
        (Numbers(), {"memory_bytes": -1}, "memory_bytes should be"),
        (Numbers(), {"step": "train"}, "step should be a function"),
        (FastLoader(Numbers()), {"batch_size": 3}, "A loader has options of its own"),
        (Numbers(), {"workers": "ants"}, "ants"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused(source, options, words):
    with pytest.raises((SettingsError, TuningError), match=words):
        quick(source, **options)
