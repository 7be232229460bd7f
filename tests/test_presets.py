"""Loaders for training and evaluation keep their promises about order and completeness."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, IterableDataset, SequentialSampler, Subset

from fastloader import FastLoader, create_loaders, evaluation_loader, train_loader
from fastloader.datasets import Augment, ChannelStatistics, DatasetWrapper, Standardize
from fastloader.errors import SettingsError
from fastloader.transforms import RandomFlip


def values(loader):
    return torch.cat(list(loader)).tolist()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


def test_training_shuffles_and_keeps_every_sample():
    loader = train_loader(range(50), 8, seed=0)

    seen = values(loader)

    assert isinstance(loader, FastLoader)
    assert sorted(seen) == list(range(50))
    assert seen != list(range(50))


def test_training_drops_the_last_batch_if_told_to():
    assert len(train_loader(range(10), 4, drop_last=True)) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"sampler": SequentialSampler(range(6))},
        {"batch_size": 1, "batch_sampler": [[0, 1, 2], [3, 4, 5]]},
    ],
    ids=["shuffle", "sampler", "batch sampler"],
)
def test_the_order_that_the_caller_gives_wins(options):
    assert values(train_loader(range(6), **options)) == list(range(6))


def test_training_on_a_stream():
    assert values(train_loader(Stream(), 4)) == list(range(6))


def test_evaluation_gives_every_sample_once_in_order():
    assert values(evaluation_loader(range(10), 4)) == list(range(10))


@pytest.mark.parametrize("option", ["shuffle", "drop_last"])
def test_evaluation_neither_shuffles_nor_drops(option):
    with pytest.raises(SettingsError, match=option):
        evaluation_loader(range(10), 4, **{option: True})


@pytest.mark.parametrize(
    "view",
    [
        lambda augmented: augmented,
        DatasetWrapper,
        lambda augmented: Subset(augmented, [0]),
        lambda augmented: ConcatDataset([[1], augmented]),
        lambda augmented: Augment(augmented, RandomFlip(), training=False),
    ],
    ids=["itself", "wrapped", "part", "among others", "below another"],
)
def test_evaluation_of_augmented_images_warns(view):
    augmented = Augment([torch.zeros(1, 2, 2)], RandomFlip())
    dataset = view(augmented)

    with pytest.warns(UserWarning, match="training mode"):
        evaluation_loader(dataset)

    augmented.set_training(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluation_loader(dataset)


def test_three_loaders_share_all_samples_and_no_sample():
    loaders = create_loaders(range(20), (0.6, 0.2, 0.2), batch_size=3, seed=4)

    parts = [values(loader) for loader in loaders]

    assert [len(part) for part in parts] == [12, 4, 4]
    assert sorted(i for part in parts for i in part) == list(range(20))
    assert parts[1] == sorted(parts[1])


def test_two_fractions_leave_out_the_test():
    assert create_loaders(range(10), (0.5, 0.5)).test is None


@pytest.mark.parametrize("fractions", [(1.0,), (0.25,) * 4])
def test_other_numbers_of_fractions_are_an_error(fractions):
    with pytest.raises(SettingsError, match="training and validation"):
        create_loaders(range(10), fractions)


def test_each_part_has_its_own_view_of_one_base():
    base = [torch.full((1, 4, 4), float(i)) for i in range(10)]
    statistics = ChannelStatistics.of(base)

    loaders = create_loaders(
        base,
        (0.6, 0.2, 0.2),
        train_view=lambda part: Augment(Standardize(part, statistics), RandomFlip()),
        evaluation_view=lambda part: Standardize(part, statistics),
    )

    assert type(loaders.train.dataset).__name__ == "Augment"
    assert type(loaders.validation.dataset).__name__ == "Standardize"
    assert loaders.train.dataset.dataset.dataset.dataset is base
    assert loaders.test.dataset.dataset.dataset is base


def test_validation_keeps_its_rows_when_training_drops():
    loaders = create_loaders(range(20), (0.5, 0.5), batch_size=8, drop_last=True)

    assert len(values(loaders.train)) == 8
    assert len(values(loaders.validation)) == 10


def test_options_reach_the_loaders_they_are_for():
    loaders = create_loaders(
        range(20),
        (0.5, 0.5),
        batch_size=2,
        num_workers=0,
        train_options={"collate_fn": sum, "batch_size": 3},
        evaluation_options={"batch_size": 5},
    )

    assert loaders.train.collate_fn is sum
    assert loaders.train.batch_size == 3
    assert loaders.validation.batch_size == 5
    assert loaders.validation.num_workers == 0


@pytest.mark.parametrize("name", ["train_view", "evaluation_view"])
@pytest.mark.parametrize(
    ("view", "message"),
    [(RandomFlip(), "for instance lambda part"), (print, "returned None")],
    ids=["transform", "nothing"],
)
def test_a_view_that_makes_no_dataset_is_refused(name, view, message):
    with pytest.raises(SettingsError, match=f"{name} .*{message}"):
        create_loaders(range(20), (0.5, 0.5), **{name: view})


def test_groups_and_labels_are_respected():
    groups = np.repeat(np.arange(10), 4)

    loaders = create_loaders(groups, (0.5, 0.5), batch_size=4, groups=groups)

    assert not set(values(loaders.train)) & set(values(loaders.validation))


def test_the_seed_decides_split_and_order():
    first, again = (create_loaders(range(30), seed=3, batch_size=4) for _ in range(2))

    assert values(first.train) == values(again.train)
