"""A loader shares its samples once, where it should, and says who does."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from fastloader import FastLoader
from fastloader.errors import EmptyEpochError, SettingsError
from fastloader.sampling import (
    ClassBalancedSampler,
    DistributedSampler,
    EpochLengthSampler,
    OrderedSampler,
    ShuffledSampler,
    WeightedSampler,
)

DATASET = TensorDataset(torch.arange(10))

pytestmark = pytest.mark.usefixtures("nothing_shares_yet")


class Users(Sampler):
    def __init__(self):
        pass

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([2, 0, 1])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(6))


class DeclaredTooFew(Stream):
    num_shards = 1

    def shard(self, num_shards, index):
        raise AssertionError


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "fastloader")
    return lambda: "\n".join(
        record.getMessage() for record in caplog.records if record.levelno == logging.INFO
    )


@pytest.fixture
def accelerate(monkeypatch):
    state = SimpleNamespace(PartialState=SimpleNamespace(_shared_state={"backend": "gloo"}))
    monkeypatch.setitem(sys.modules, "accelerate.state", state)


def order_of(loader):
    return [index for [batch] in loader for index in batch.tolist()]


def shares_of(as_rank, world_size, *args, **options):
    found = []
    for rank in range(world_size):
        as_rank(rank, world_size)
        found.append(order_of(FastLoader(DATASET, *args, **options)))
    return found


# Whether it shares.


def test_a_loader_shares_nothing_unless_asked(as_rank):
    loader = FastLoader(DATASET, 4, shuffle=True)

    assert type(loader.sampler) is RandomSampler
    assert loader.distributed is False


@pytest.mark.parametrize("distributed", [True, "auto"])
def test_a_share_is_a_distributed_sampler(as_rank, distributed):
    loader = FastLoader(DATASET, 4, shuffle=True, distributed=distributed)

    assert type(loader.sampler) is DistributedSampler
    assert loader.batch_sampler.sampler is loader.sampler
    assert len(loader) == 2


@pytest.mark.parametrize("distributed", [True, "auto"])
def test_one_rank_has_nothing_to_share(distributed, said):
    loader = FastLoader(DATASET, 4, shuffle=True, distributed=distributed)

    assert type(loader.sampler) is RandomSampler
    assert "only rank (no launcher)" in said()


def test_another_word_than_auto_is_refused():
    with pytest.raises(SettingsError, match="should be False, True or 'auto', but got 'yes'"):
        FastLoader(DATASET, distributed="yes")


def test_the_log_says_who_shares(as_rank, said):
    FastLoader(DATASET, distributed="auto")

    assert said() == (
        "Rank 0 of 2 (RANK and WORLD_SIZE) reads 5 of 10 samples in an epoch (each sample on one "
        "rank), shared out by this loader."
    )


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": TorchDistributedSampler(DATASET, 2, 0)},
        {"sampler": DistributedSampler(DATASET, 2, 0)},
        {
            "batch_sampler": BatchSampler(
                TorchDistributedSampler(DATASET, 2, 0), 2, drop_last=False
            )
        },
        {"sampler": EpochLengthSampler(DistributedSampler(DATASET, 2, 0), 4)},
    ],
    ids=["torch's", "ours", "in batches", "within another"],
)
@pytest.mark.parametrize("distributed", [True, "auto"])
def test_what_is_shared_already_is_left_alone(as_rank, said, given, distributed):
    loader = FastLoader(DATASET, distributed=distributed, **given)

    for name, value in given.items():
        assert getattr(loader, name) is value
    assert "shared out already, by a DistributedSampler that was given" in said()


def test_a_loader_made_anew_from_another_shares_once(as_rank):
    first = FastLoader(DATASET, 2, shuffle=True, distributed=True, batches_per_epoch=3)

    second = FastLoader(
        DATASET, 2, sampler=first.sampler, distributed=first.distributed,
        batches_per_epoch=first.batches_per_epoch,
    )  # fmt: skip

    assert second.sampler is first.sampler


def test_accelerate_shares_by_itself(as_rank, accelerate, said):
    loader = FastLoader(DATASET, distributed="auto")

    assert type(loader.sampler) is SequentialSampler
    assert "does not share its samples: Accelerate shares out every loader" in said()
    with pytest.raises(ValueError, match="Accelerate shares out every loader"):
        FastLoader(DATASET, distributed=True)


@pytest.mark.parametrize(
    ("dataset", "given", "message"),
    [
        (DATASET, {"sampler": Users()}, "Users may draw another order on each rank"),
        (DATASET, {"batch_sampler": [[0, 1]]}, "batch_sampler makes its own batches"),
        (Stream(), {}, "Stream is iterable"),
        (DeclaredTooFew(), {}, "DeclaredTooFew is iterable"),
    ],
    ids=["sampler", "batch sampler", "stream", "too few shards"],
)
def test_what_cannot_be_shared_is_left_alone_or_refused(as_rank, said, dataset, given, message):
    with pytest.raises(SettingsError, match=f"distributed=True cannot share .*{message}"):
        FastLoader(dataset, distributed=True, **given)
    loader = FastLoader(dataset, distributed="auto", **given)

    assert not isinstance(loader.sampler, TorchDistributedSampler)
    assert message in said()


# What is shared.


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_in_order_each_sample_is_on_one_rank(as_rank, world_size):
    parts = shares_of(as_rank, world_size, 2, distributed=True)

    assert sorted(index for part in parts for index in part) == list(range(10))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_shuffled_shares_are_equal_and_hold_every_sample(as_rank, world_size):
    parts = shares_of(as_rank, world_size, 2, shuffle=True, distributed=True)

    assert {index for part in parts for index in part} == set(range(10))
    assert {len(part) for part in parts} == {-(-10 // world_size)}


def test_dropping_the_last_leaves_no_sample_twice(as_rank):
    parts = shares_of(as_rank, 3, 2, shuffle=True, drop_last=True, distributed=True)

    assert [len(part) for part in parts] == [2, 2, 2]
    assert len({index for part in parts for index in part}) == 6


def test_the_order_of_all_ranks_together_is_that_of_one(as_rank):
    parts = shares_of(as_rank, 2, 2, shuffle=True, seed=3, distributed=True)

    alone = order_of(FastLoader(DATASET, 2, shuffle=True, seed=3))
    assert [index for pair in zip(*parts, strict=True) for index in pair] == alone


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(DATASET),
        WeightedSampler([1] * 10, 8, replacement=False),
        range(2, 9),
        lambda dataset: ClassBalancedSampler(dataset.tensors[0] // 5),
    ],
    ids=["torch's", "weighted", "indices", "a factory"],
)
def test_samplers_are_shared_too(as_rank, sampler):
    parts = shares_of(as_rank, 2, 1, sampler=sampler, distributed=True)

    drawn = [index for part in parts for index in part]
    assert len(drawn) - len(set(drawn)) <= 1  # one may pad


def test_the_generator_of_one_rank_changes_no_order(as_rank):
    orders = [
        list(
            FastLoader(
                DATASET,
                shuffle=True,
                distributed=True,
                generator=torch.Generator().manual_seed(seed),
            ).sampler
        )
        for seed in (1, 2)
    ]

    assert orders[0] == orders[1]


def test_an_empty_dataset_is_not_shuffled(as_rank):
    with pytest.raises(EmptyEpochError, match="nothing to shuffle"):
        FastLoader([], shuffle=True, distributed=True)


def test_shuffling_beside_a_sampler_is_torchs_error(as_rank):
    for options in ({"distributed": True}, {"samples_per_epoch": 3}):
        with pytest.raises(ValueError, match="mutually exclusive with shuffle"):
            FastLoader(DATASET, shuffle=True, sampler=ShuffledSampler(10), **options)


# Factories.


def test_a_sampler_may_be_made_from_the_dataset():
    loader = FastLoader(DATASET, 4, sampler=OrderedSampler)
    batches = FastLoader(DATASET, batch_sampler=lambda dataset: [[len(dataset) - 1]])

    assert type(loader.sampler) is OrderedSampler
    assert order_of(loader) == list(range(10))
    assert order_of(batches) == [9]


# Length of an epoch.


def test_epochs_of_a_number_of_samples_go_on_where_the_last_one_ended():
    loader = FastLoader(DATASET, 2, samples_per_epoch=6)

    assert len(loader) == 3
    assert order_of(loader) == [0, 1, 2, 3, 4, 5]


def test_epochs_may_be_longer_than_the_dataset():
    order = order_of(FastLoader(DATASET, 2, shuffle=True, samples_per_epoch=25))

    assert [sorted(order[:10]), sorted(order[10:20])] == [list(range(10))] * 2
    assert order[:10] != order[10:20]
    assert len(set(order[20:])) == 5


def test_the_seed_decides_the_order_of_such_epochs_and_else_torchs():
    def order(**options):
        return order_of(FastLoader(DATASET, shuffle=True, samples_per_epoch=30, **options))

    assert order(seed=1) == order(seed=1) != order(seed=2)
    torch.manual_seed(1)
    first = order()
    assert order() == first
    torch.manual_seed(2)
    assert order() != first
    generator = torch.Generator().manual_seed(1)
    assert order(generator=generator) == first


def test_batches_count_for_each_rank(as_rank):
    loader = FastLoader(DATASET, 2, shuffle=True, batches_per_epoch=4, distributed=True)

    assert len(loader) == 4
    assert len(loader.sampler.sampler) == 16


def test_any_sampler_can_have_epochs_of_another_length():
    loader = FastLoader(DATASET, 4, sampler=Users(), batches_per_epoch=2)

    assert order_of(loader) == [2, 0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (DATASET, {"samples_per_epoch": 3, "batches_per_epoch": 3}, "give one of them"),
        (DATASET, {"samples_per_epoch": 3, "batch_sampler": [[0]]}, "no batch_sampler"),
        (Stream(), {"samples_per_epoch": 3}, "need a map-style dataset"),
        (DATASET, {"samples_per_epoch": 0}, "samples_per_epoch must be .* but got 0"),
        (DATASET, {"samples_per_epoch": 2.5}, "samples_per_epoch must be .* but got 2.5"),
        (DATASET, {"samples_per_epoch": True}, "samples_per_epoch must be .* but got True"),
        (DATASET, {"batches_per_epoch": -1}, "batches_per_epoch must be .* but got -1"),
        (DATASET, {"batches_per_epoch": "2"}, "batches_per_epoch must be .* but got '2'"),
        (
            DATASET,
            {"samples_per_epoch": 3, "sampler": TorchDistributedSampler(DATASET, 2, 0)},
            "come before sharing",
        ),
    ],
    ids=["both", "batch sampler", "stream", "0", "2.5", "True", "-1", "string", "shared"],
)
def test_lengths_that_cannot_be_are_refused(dataset, options, message):
    with pytest.raises(SettingsError, match=message):
        FastLoader(dataset, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"shuffle": False, "drop_last": True},
        {"shuffle": False, "num_replicas": 2},
        {"shuffle": False, "rank": 1},
    ],
    ids=["training", "cut", "even", "other rank"],
)
def test_nothing_is_said_of_shares_of_torchs_where_nothing_is_counted_twice(options):
    sampler = TorchDistributedSampler(range(10), **{"num_replicas": 4, "rank": 0, **options})

    FastLoader(range(10), sampler=sampler)


@pytest.mark.parametrize("in_batches", [False, True])
def test_a_share_of_torchs_that_gives_samples_twice_in_an_evaluation_brings_a_warning(
    in_batches,
):
    sampler = TorchDistributedSampler(range(10), num_replicas=4, rank=0, shuffle=False)
    option = "batch_sampler" if in_batches else "sampler"

    with pytest.warns(
        UserWarning, match=r"gives 2 of 10 samples twice.*4 ranks.*distributed=True"
    ):
        FastLoader(
            range(10), **{option: BatchSampler(sampler, 2, False) if in_batches else sampler}
        )
