"""Ranks and workers divide an iterable dataset, each sample to one of them."""

import logging
import pickle
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from fastloader import FastLoader
from fastloader.datasets import Augment, ShardedIterable
from fastloader.errors import SettingsError

pytestmark = pytest.mark.usefixtures("nothing_shares_yet")


class Stream(IterableDataset):
    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length))


class Splitting(Stream):
    """Divides its samples among workers, as torch's documentation shows."""

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(self.length)[worker::num_workers])


class Declared(IterableDataset):
    """Declares shards and divides them among workers, as Hugging Face's datasets do."""

    def __init__(self, shards):
        self.shards = shards
        self.epoch = 0

    @property
    def num_shards(self):
        return len(self.shards)

    def shard(self, num_shards, index):
        return Declared(self.shards[index::num_shards])

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in self.shards[worker::num_workers]:
            yield from shard


class Counting(Stream):
    """Can be resumed."""

    position = 0

    def __iter__(self):
        while self.position < self.length:
            self.position += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def numbers(loader):
    return [int(number) for batch in loader for number in torch.as_tensor(batch).flatten()]


def parts_of(dataset, num_replicas, **options):
    return [
        list(ShardedIterable(dataset, num_replicas=num_replicas, rank=rank, **options))
        for rank in range(num_replicas)
    ]


@given(length=st.integers(0, 30), num_replicas=st.integers(1, 5))
def test_every_sample_is_on_one_rank(length, num_replicas):
    parts = parts_of(Stream(length), num_replicas)

    assert sorted(chain(*parts)) == list(range(length))
    for rank, part in enumerate(parts):
        assert len(
            ShardedIterable(Stream(length), num_replicas=num_replicas, rank=rank)
        ) == len(part)


@given(length=st.integers(0, 30), num_replicas=st.integers(1, 5))
def test_dropping_gives_equal_numbers_without_the_last(length, num_replicas):
    parts = parts_of(Stream(length), num_replicas, uneven="drop")

    each = length // num_replicas
    assert sorted(chain(*parts)) == list(range(each * num_replicas))
    assert {len(part) for part in parts} == {each}
    sharded = ShardedIterable(Stream(length), num_replicas=num_replicas, rank=0, uneven="drop")
    assert len(sharded) == each


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Stream(13), {}),
        (Splitting(13), {"splits_workers": True}),
        (Declared([[0, 1, 2], [3], [4, 5, 6, 7], [8, 9], [10, 11, 12]]), {}),
        (Declared([list(range(13))]), {}),
    ],
    ids=["plain", "splitting", "shards", "too few shards"],
)
def test_ranks_and_workers_divide_a_stream_without_loss(dataset, options):
    found = []
    for rank in range(2):
        part = ShardedIterable(dataset, num_replicas=2, rank=rank, **options)
        found += numbers(FastLoader(part, 2, num_workers=2))

    assert sorted(found) == list(range(13))


def test_whole_shards_are_read_by_one_rank():
    assert parts_of(Declared([[0, 1], [2], [3, 4]]), 2) == [[0, 1, 3, 4], [2]]


def test_the_shards_of_a_rank_limit_its_workers():
    part = ShardedIterable(Declared([[0]] * 6), num_replicas=2, rank=0)

    assert part.num_shards == 3


def test_the_dataset_is_told_the_epoch():
    part = ShardedIterable(Declared([[0], [1]]), num_replicas=2, rank=0)

    part.set_epoch(4)

    assert part.dataset.epoch == 4


def test_it_can_be_pickled_and_wrapped():
    part = pickle.loads(pickle.dumps(ShardedIterable(Stream(5), num_replicas=2, rank=1)))

    assert list(part) == [1, 3]
    assert isinstance(Augment(part, []), IterableDataset)


@pytest.mark.parametrize("kind", [Counting, Stream], ids=["stateful", "read again"])
@pytest.mark.parametrize("uneven", ["keep", "drop"])
def test_a_share_can_be_resumed(kind, uneven):
    def loader():
        part = ShardedIterable(kind(23), num_replicas=2, rank=1, uneven=uneven)
        return FastLoader(part, 2, num_workers=0)

    whole = numbers(loader())
    first, second = loader(), loader()
    batches = iter(first)
    read = numbers([next(batches) for _ in range(3)])
    second.load_state_dict(first.state_dict())

    assert read + numbers(second) == whole


# In a loader.


@pytest.mark.parametrize("distributed", [True, "auto"])
def test_a_loader_takes_the_shards_of_its_rank(as_rank, distributed, caplog):
    caplog.set_level(logging.INFO, "fastloader")
    dataset = Declared([[0, 1], [2], [3, 4]])
    found = []
    for rank in range(2):
        as_rank(rank, 2)
        loader = FastLoader(dataset, 2, distributed=distributed, num_workers=0)
        assert isinstance(loader.dataset, ShardedIterable)
        found.append(numbers(loader))

    assert found == [[0, 1, 3, 4], [2]]
    assert "shared out already, by ShardedIterable, which reads its part of them" in caplog.text


def test_a_loader_made_anew_takes_them_once(as_rank):
    first = FastLoader(Declared([[0], [1], [2], [3]]), distributed=True, num_workers=0)

    second = FastLoader(first.dataset, distributed=first.distributed, num_workers=0)

    assert numbers(second) == [0, 2]


def test_one_rank_reads_all_shards():
    dataset = Declared([[0], [1]])

    assert FastLoader(dataset, distributed=True).dataset is dataset


def test_a_stream_of_hugging_face_is_shared_once(as_rank):
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node

    def rows():
        return datasets.Dataset.from_dict({"x": list(range(12))}).to_iterable_dataset(
            num_shards=4
        )

    found = []
    for rank in range(2):
        as_rank(rank, 2)
        loader = FastLoader(rows(), None, distributed=True, num_workers=0)
        found += [row["x"] for row in loader]
    split = split_dataset_by_node(rows(), rank=0, world_size=2)

    assert sorted(found) == list(range(12))
    assert FastLoader(split, None, distributed=True, num_workers=0).dataset is split


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ([1, 2], {}, "list is not iterable: share out a map-style dataset"),
        (Stream(), {"num_replicas": 2, "rank": 2}, "rank must be from 0 to 1"),
        (Stream(), {"uneven": "pad"}, "uneven should be 'keep' or 'drop', but got 'pad'"),
    ],
    ids=["map-style", "rank", "uneven"],
)
def test_what_cannot_be_divided_is_refused(dataset, options, message):
    with pytest.raises(SettingsError, match=message):
        ShardedIterable(dataset, **options)
