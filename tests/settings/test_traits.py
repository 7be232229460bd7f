"""What settings need to know of a dataset is found without reading a sample."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.datapipes.iter import IterableWrapper

from fastloader.datasets import DatasetWrapper, OMEArrowDataset
from fastloader.settings._traits import describe_dataset

CELLS = Path(__file__).parents[2] / "data" / "nf1_cells.parquet"
AS_GIVEN = {
    "batch_size": 4,
    "sampler": None,
    "batch_sampler": None,
    "drop_last": False,
    "collate_fn": None,
}


class Untouchable(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError("read")


class Unsized(Untouchable):
    def __len__(self):
        raise RuntimeError("no idea")


class Stream(IterableDataset):
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __iter__(self):
        raise AssertionError("read")


def describe(dataset, **given):
    return describe_dataset(dataset, **{**AS_GIVEN, **given})


@pytest.mark.parametrize(
    ("dataset", "given", "num_batches"),
    [
        (Untouchable(), {}, 3),
        (Untouchable(), {"drop_last": True}, 2),
        (Untouchable(), {"batch_size": None}, 10),
        (Untouchable(), {"sampler": [1, 2, 3, 4, 5]}, 2),
        (Untouchable(), {"batch_sampler": [[1], [2]]}, 2),
        (Untouchable(), {"batch_size": 0}, None),
        (Untouchable(), {"batch_size": "four"}, None),
        (Unsized(), {}, None),
        (Stream(), {}, None),
    ],
    ids=[
        "all",
        "whole batches",
        "single samples",
        "sampler",
        "batch sampler",
        "no size",
        "wrong size",
        "unsized",
        "iterable",
    ],
)
def test_batches_are_counted_where_that_can_be(dataset, given, num_batches):
    assert describe(dataset, **given).num_batches == num_batches


@pytest.mark.parametrize(
    ("given", "batched"),
    [
        ({}, True),
        ({"collate_fn": default_collate}, True),
        ({"collate_fn": list}, False),
        ({"batch_size": None}, False),
        ({"batch_size": None, "batch_sampler": [[1]]}, True),
    ],
    ids=["default", "torch's collate", "own collate", "single samples", "batch sampler"],
)
def test_whole_batches_need_torchs_collate(given, batched):
    assert describe(TensorDataset(torch.arange(4)), **given).batched is batched


class Decoding(Untouchable):
    wants_workers = True

    def get_batch(self, indices):
        raise AssertionError("read")


READY = TensorDataset(torch.arange(4))


@pytest.mark.parametrize(
    ("dataset", "wants_workers"),
    [
        (READY, False),
        (Decoding(), True),
        (DatasetWrapper(Subset(Decoding(), [0, 1])), True),
        (ConcatDataset([READY, Decoding()]), True),
        (DatasetWrapper(READY), False),
    ],
    ids=["in memory", "decoding", "wrapped part", "one of two", "wrapped in memory"],
)
def test_batches_that_are_work_are_known_through_wrappers(dataset, wants_workers):
    assert describe(dataset).batched
    assert describe(dataset).wants_workers is wants_workers


@pytest.mark.parametrize(
    ("options", "wants_workers"),
    [({}, False), ({"preload": False}, True), ({"preload": False, "cache": "shared"}, False)],
    ids=["decoded once", "decoded each time", "kept when first read"],
)
def test_images_that_are_decoded_each_time_are_work(options, wants_workers):
    dataset = OMEArrowDataset(CELLS, **options)

    assert describe(DatasetWrapper(dataset)).wants_workers is wants_workers


@pytest.mark.parametrize(
    ("attributes", "num_shards"),
    [({}, None), ({"num_shards": 3}, 3), ({"n_shards": 2}, 2), ({"num_shards": "many"}, None)],
    ids=["none", "num_shards", "n_shards", "nonsense"],
)
def test_an_iterable_dataset_may_declare_shards(attributes, num_shards):
    traits = describe(Stream(**attributes))

    assert traits.is_iterable
    assert traits.num_shards == num_shards


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_datapipe_stays_in_this_process():
    assert describe(IterableWrapper([1, 2])).tied


def test_a_sequence_is_known_to_lie_in_memory():
    assert [describe(data).is_sequence for data in ([1], (1,), range(3), Untouchable())] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.gpu
def test_cuda_tensors_are_found_where_they_stand_in_plain_sight():
    rows = torch.zeros(3, device="cuda")
    holder = Untouchable()
    holder.fields = {"rows": [rows]}

    for dataset in (
        rows,
        [rows],
        TensorDataset(rows),
        Subset(TensorDataset(rows), [0]),
        holder,
    ):
        traits = describe(dataset)
        assert traits.on_device
        assert traits.tied
