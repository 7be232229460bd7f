"""Loaders are measured in turn, from outside, the same way for any kind."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fastloader import FastLoader, MixedLoader
from fastloader.errors import SettingsError
from fastloader.measuring import benchmark, diagnose, measure_loader
from tests.measuring.planted import Computed, Stored


@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_rates_are_those_of_the_loop(kind):
    loader = kind(Stored(64, 2e-3), 4, num_workers=0)

    measured = measure_loader(loader, step=lambda _: time.sleep(0.004), seconds=0.3)

    stats = measured.stats
    assert stats.samples_per_second <= 4 / 0.012
    assert stats.batches_per_second * 4 == pytest.approx(stats.samples_per_second)
    assert 0.3 < stats.wait_share < 0.9
    assert measured.cpu_seconds > 0
    assert measured.memory_bytes > 0


def test_passes_follow_each_other_until_the_time_is_over():
    loader = FastLoader(TensorDataset(torch.zeros(16, 2)), 4)

    stats = measure_loader(loader, seconds=0.1).stats

    assert stats.num_epochs > 1
    assert stats.epoch_gap_seconds > 0
    assert stats.num_batches > 4


def test_a_number_of_batches_can_be_the_end():
    loader = FastLoader(TensorDataset(torch.zeros(16, 2)), 4)

    stats = measure_loader(loader, seconds=60, max_batches=6).stats

    assert stats.num_batches == 6


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_a_pass_that_is_broken_off_leaves_nothing_behind(kind, no_leaks):
    loader = kind(Stored(64, 1e-3), 2, num_workers=2, persistent_workers=False)

    measured = measure_loader(loader, seconds=60, max_batches=5)

    assert measured.stats.first_batch_seconds > 0


class Counted(Computed):
    """Counts its samples, wherever they are made."""

    def __init__(self, length, seconds):
        super().__init__(length, seconds)
        self.num_made = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        self.num_made += 1
        return sample


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [FastLoader, DataLoader])
def test_no_loader_works_in_the_turn_of_another(kind):
    dataset = Counted(64, 0.005)
    loader = kind(dataset, 4, num_workers=1, persistent_workers=True, prefetch_factor=4)

    measure_loader(loader, seconds=60, max_batches=2)
    before = dataset.num_made.item()
    time.sleep(0.2)

    assert before >= 8
    assert dataset.num_made.item() == before


@pytest.mark.multiprocess
def test_no_batch_is_made_before_the_turn_of_its_loader():
    loader = FastLoader(Stored(8, 0.02), 4, num_workers=1, persistent_workers=True)

    measure_loader(loader, seconds=60, max_batches=6)
    time.sleep(0.3)
    again = measure_loader(loader, seconds=60, max_batches=1)

    assert again.stats.first_batch_seconds > 0.07


def test_loaders_are_compared_in_a_table():
    loaders = {
        "ours": FastLoader(TensorDataset(torch.zeros(64, 2)), 8),
        "stock": DataLoader(TensorDataset(torch.zeros(64, 2)), 8),
    }

    result = benchmark(loaders, seconds=0.2, num_rounds=2)
    lines = str(result).splitlines()

    assert [line.split()[0] for line in lines] == ["loader", "ours", "stock"]
    assert len({len(line) for line in lines}) == 1
    assert all(len(rounds) == 2 for rounds in result.measurements.values())
    assert result.as_dict()["ours"]["samples_per_second"] > 0


def test_the_cpu_time_of_a_batch_is_a_share_of_that_of_all():
    result = benchmark(
        FastLoader(TensorDataset(torch.zeros(16, 2)), 4), seconds=0.1, num_rounds=1
    )

    [measured] = result.measurements["loader"]
    batch_seconds = result.as_dict()["loader"]["batch_cpu_seconds"]
    assert batch_seconds * measured.stats.num_batches == pytest.approx(measured.cpu_seconds)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seconds": 0}, "seconds must be more than 0"),
        ({"seconds": -1}, "but got -1"),
        ({"num_rounds": 0}, "There must be a round"),
        ({"num_rounds": 2.5}, "num_rounds"),
        ({"step": 3}, "step"),
    ],
    ids=["no time", "negative time", "no round", "half a round", "no step"],
)
def test_what_cannot_be_measured_is_refused(options, words):
    with pytest.raises(SettingsError, match=words):
        benchmark(FastLoader(range(8), 2), **options)


def test_no_loader_cannot_be_measured():
    with pytest.raises(SettingsError, match="0 loaders"):
        benchmark({})


@pytest.mark.parametrize(
    ("subject", "hint"),
    [
        (range(8), "FastLoader\\(dataset"),
        ([FastLoader(range(8), 2)], "got list"),
    ],
    ids=["dataset", "list"],
)
@pytest.mark.parametrize("look", [benchmark, diagnose])
def test_what_is_no_loader_is_refused_with_what_to_give(look, subject, hint):
    with pytest.raises(SettingsError, match=hint):
        look(subject, seconds=0.1)


class Letters(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(8))


SOURCES = {"a": torch.arange(16), "b": torch.arange(8)}


@pytest.mark.parametrize("with_names", [False, True], ids=["bare", "named"])
@pytest.mark.parametrize(
    "sources", [SOURCES, {**SOURCES, "c": Letters()}], ids=["one loader", "several loaders"]
)
@pytest.mark.parametrize("mix", ["batches", "samples"])
def test_a_mixture_is_measured_as_the_loop_has_it(mix, sources, with_names):
    mixed = MixedLoader(sources, 4, mix=mix, with_names=with_names, num_workers=0)
    seen = []

    (measured,) = benchmark(mixed, step=seen.append, seconds=0.1, num_rounds=1).measurements[
        "loader"
    ]

    assert measured.stats.num_batches == len(seen)
    assert measured.stats.num_samples == 4 * len(seen)
    assert measured.stats.batch_bytes == 4 * 8
    assert isinstance(seen[0], tuple if with_names else torch.Tensor)


def test_a_mixture_that_one_loader_reads_is_diagnosed():
    mixed = MixedLoader(SOURCES, 4, with_names=True, num_workers=0)

    assert diagnose(mixed, step=lambda _: time.sleep(0.005), seconds=0.2).is_sound


def test_of_a_mixture_of_several_loaders_it_is_said_what_to_look_at():
    mixed = MixedLoader({**SOURCES, "c": Letters()}, 4)

    with pytest.raises(SettingsError, match=r"mixed\.loaders"):
        diagnose(mixed, seconds=0.1)


class Spent(IterableDataset):
    """A stream that goes on where it was, and has an end."""

    def __init__(self, length):
        self.samples = iter(range(length))

    def __iter__(self):
        return self.samples


def test_a_stream_that_comes_to_its_end_has_the_turns_that_it_could_fill():
    result = benchmark(FastLoader(Spent(64), 8, num_workers=0), seconds=0.3, num_rounds=3)

    (measured,) = result.measurements["loader"]
    assert measured.stats.num_batches == 8


def test_a_stream_without_a_batch_is_named():
    with pytest.raises(SettingsError, match="'empty' gave no batch"):
        benchmark(
            {"full": FastLoader(range(8), 2), "empty": FastLoader(Spent(0), 8, num_workers=0)},
            seconds=0.1,
        )


def test_a_stream_that_can_be_read_only_once_cannot_be_diagnosed():
    with pytest.raises(SettingsError, match="__iter__ begin anew"):
        diagnose(FastLoader(Spent(64), 8, num_workers=0), seconds=0.2)
