"""Data on a device gives the batches that it gives in memory; here the device is the CPU."""

import gc

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, default_collate

from fastloader.datasets import Augment, ChannelStatistics, OMEArrowDataset, Standardize
from fastloader.datasets._batched import as_batched
from fastloader.datasets._resident import NotResidentError, copied_parts, make_resident
from fastloader.datasets._stored_images import StoredImages
from fastloader.inspection._fingerprint import fingerprint
from fastloader.randomness._seeding import DrawScope, draw_scope
from fastloader.transforms import RandomFlip
from tests.equality import assert_same

CPU = torch.device("cpu")
PICTURES = "data/nf1_cells.parquet"


def tensors(*shape, dtype=torch.float32):
    return torch.randint(0, 200, shape).to(dtype)


def resident(dataset):
    return make_resident(as_batched(dataset), CPU)


class Dictionaries(torch.utils.data.Dataset):
    """Samples that are made of others, in batches."""

    def __init__(self, length, extra=None):
        self.images = tensors(length, 3, 4)
        self.extra = extra

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return default_collate([{"image": self.images[index], "index": index}])

    def get_batch(self, indices):
        batch = {"image": self.images[list(indices)], "index": torch.tensor(list(indices))}
        return batch if self.extra is None else {**batch, "extra": self.extra(indices)}


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.bfloat16, torch.float32,
    torch.uint32, torch.float64, torch.uint64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(9,), (9, 5), (9, 3, 7), (9, 0), (9, 2, 4)], ids=str)
def test_rows_of_any_type_and_shape_are_those_of_the_tensor(dtype, shape):
    data = TensorDataset(tensors(*shape, dtype=dtype), torch.arange(9))
    indices = [3, 3, 0, 8, -1, 5]

    taken = resident(data).take(indices)

    assert_same(taken, default_collate([data[index] for index in indices]))


@pytest.mark.parametrize(
    "dataset",
    [
        tensors(12, 4),
        TensorDataset(tensors(12, 3, 4, 5).to(memory_format=torch.channels_last)),
        TensorDataset(tensors(24, 4)[::2], tensors(3, 12).t()),
        Subset(TensorDataset(tensors(40, 4)), [7, 3, 3, 39, 0, 1, 2, 4, 5, 6, 8, 9]),
        Subset(Subset(TensorDataset(tensors(40, 4)), range(0, 40, 2)), torch.arange(12)),
        ConcatDataset([TensorDataset(tensors(5, 4)), TensorDataset(tensors(7, 4))]),
        StackDataset(a=TensorDataset(tensors(12, 4)), b=tensors(12, 2)),
        Standardize(
            TensorDataset(tensors(12, 2, 4, 4)), ChannelStatistics.of(tensors(9, 2, 4, 4))
        ),
        Dictionaries(12),
    ],
    ids=["tensor", "channels last", "slices", "subset", "nested subset", "concatenation",
         "stack", "standardized", "own"],
)  # fmt: skip
def test_batches_are_those_of_the_dataset(dataset):
    batched = as_batched(dataset)
    indices = [11, 0, 5, 5, 3, 7, 8]

    assert_same(resident(dataset).take(indices), batched.get_batch(indices))


def test_pictures_of_a_file_are_kept_as_they_are_decoded():
    dataset = OMEArrowDataset(PICTURES, label_column="label")
    indices = [4, 1, 1, 0]

    assert_same(resident(dataset).take(indices), dataset.get_batch(indices))


@pytest.mark.parametrize(
    "options", [{"axes": "CYX"}, {"axes": "YXC"}, {"dtype": None}, {"scale": 0.5}], ids=str
)
def test_pictures_that_are_in_memory_are_copied_whole(options, monkeypatch):
    dataset = OMEArrowDataset(
        PICTURES, label_column="label", preload=True, progress=False, **options
    )
    monkeypatch.setattr(StoredImages, "get_batch", None)  # reads them anew
    indices = [4, 1, 1, 0]

    assert_same(resident(dataset).take(indices), dataset.get_batch(indices))


def test_random_changes_are_made_anew_for_each_epoch():
    dataset = Augment(TensorDataset(tensors(12, 2, 4, 4)), RandomFlip())
    kept, indices = resident(dataset), list(range(12))

    for epoch in (0, 1):
        with draw_scope(DrawScope(5, epoch)):
            assert_same(kept.take(indices), as_batched(dataset).get_batch(indices))


def test_loaders_over_the_same_data_share_one_copy():
    data = TensorDataset(tensors(12, 4))

    first, second = resident(data), resident(Subset(data, [3, 4]))

    assert second._base is first


def test_a_changed_tensor_is_copied_anew():
    data = TensorDataset(tensors(12, 4))
    first = resident(data)
    data.tensors[0][3] = 77

    second = resident(data)

    assert second is not first
    assert (second.take([3])[0] == 77).all()


def test_the_copy_goes_with_its_last_user():
    kept = resident(TensorDataset(tensors(12, 4)))
    column = torch.utils.weak.WeakTensorKeyDictionary({kept._columns[0]._rows: 1})

    del kept
    gc.collect()

    assert not list(column.keys())


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Dictionaries(20, extra=lambda indices: ["name"] * len(indices)), "tensors alone"),
        (Dictionaries(20, extra=lambda indices: torch.zeros(7)), "tensors alone"),
        (Dictionaries(20, extra=lambda i: torch.zeros(len(i), 16 // len(i))), "differ"),
        (Dictionaries(20, extra=lambda indices: 1 / 0), "ZeroDivisionError"),
        (Dictionaries(0), "empty"),
        (TensorDataset(torch.zeros(5, requires_grad=True)), "gradients"),
    ],
    ids=["strings", "another length", "other shapes", "error", "empty", "gradients"],
)
def test_data_that_cannot_be_kept_is_refused_with_the_reason(dataset, words):
    with pytest.raises(NotResidentError, match=words):
        resident(dataset)


def test_pictures_of_several_sizes_cannot_be_kept():
    dataset = OMEArrowDataset(
        "tests/data/BR00117006.ome.parquet", "Image_FileName_OrigDNA_OMEArrow_ORIG"
    )

    with pytest.raises(NotResidentError, match="3 shapes"):
        resident(dataset)


def test_data_that_is_too_large_for_the_device_is_refused(monkeypatch):
    class Small:
        @staticmethod
        def mem_get_info(device):
            return 1000, 2000

    monkeypatch.setattr(torch, "get_device_module", lambda device: Small)

    with pytest.raises(NotResidentError, match="more than 60% of the"):
        make_resident(as_batched(TensorDataset(tensors(200, 4))), torch.device("meta"))


def test_a_device_whose_memory_others_take_meanwhile_is_said_to_have_none(monkeypatch):
    def refuse(*_arguments, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    data = as_batched(TensorDataset(tensors(200, 4)))
    monkeypatch.setattr(torch.Tensor, "to", refuse)

    with pytest.raises(NotResidentError, match="cpu has no memory for it at the moment"):
        make_resident(data, CPU)


@pytest.mark.parametrize("outside", [12, -13])
def test_an_index_outside_is_an_error(outside):
    with pytest.raises(IndexError, match="12 samples"):
        resident(TensorDataset(tensors(12, 4))).take([0, outside])


def test_indices_may_be_numbers_of_numpy():
    data = TensorDataset(tensors(12, 4))

    assert torch.equal(resident(data).take([np.int64(3)])[0], data.tensors[0][3:4])


def test_what_a_copy_is_made_of_is_seen_to_change():
    pictures = OMEArrowDataset(PICTURES, label_column="label")
    subset = Subset(pictures, [0, 1])
    augmented = Augment(subset, RandomFlip())

    def parts_of(dataset):
        return fingerprint(copied_parts(as_batched(dataset)))

    before = [parts_of(one) for one in (pictures, subset, augmented)]
    pictures.get_batch([0, 1])  # opens what it reads
    assert [parts_of(one) for one in (pictures, subset, augmented)] == before

    subset.indices.append(2)
    assert parts_of(pictures) == before[0]
    assert parts_of(subset) != before[1]
    assert parts_of(augmented) != before[2]

    assert parts_of(Augment(subset, RandomFlip())) != parts_of(augmented)
