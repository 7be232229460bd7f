"""Whole batches are, bit for bit, what collating the samples gives."""

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from fastloader.datasets import DatasetWrapper
from fastloader.datasets._batched import as_batched

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.int64,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.complex64,
]
LAYOUTS = ["plain", "transposed", "strided", "expanded", "channels last", "conjugated"]


class Point(NamedTuple):
    x: torch.Tensor
    y: int


def make_tensor(length, shape, dtype, layout, seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    steps = 2 if layout == "strided" else 1
    full = (length * steps, *shape)
    tensor = torch.randint(0, 2**15, full, generator=generator)
    if layout == "expanded":
        tensor = tensor[:1].expand(full)
    tensor = tensor.to(dtype)[::steps]
    if layout == "transposed" and len(shape) >= 2:
        tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "channels last" and len(shape) == 3:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    if layout == "conjugated" and dtype.is_complex:
        tensor = tensor.conj()
    if requires_grad and (dtype.is_floating_point or dtype.is_complex):
        tensor.requires_grad_()
    return tensor


tensors = st.builds(
    make_tensor,
    length=st.just(9),
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 3),
    requires_grad=st.booleans(),
)
index_lists = st.lists(st.integers(-9, 8), min_size=1, max_size=12)


def same(batch, expected):
    assert type(batch) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (batch.shape, batch.dtype) == (expected.shape, expected.dtype)
        assert batch.requires_grad == expected.requires_grad
        if expected.numel() and len(expected) > 1:
            axes = [axis for axis, size in enumerate(expected.shape) if size > 1]
            assert [batch.stride(a) for a in axes] == [expected.stride(a) for a in axes]
        assert torch.equal(batch, expected)
    elif isinstance(expected, dict):
        assert list(batch) == list(expected)
        for name, value in expected.items():
            same(batch[name], value)
    elif isinstance(expected, (list, tuple)) and not isinstance(expected, str):
        assert len(batch) == len(expected)
        for part, wanted in zip(batch, expected, strict=True):
            same(part, wanted)
    else:
        assert batch == expected


def check(dataset, indices):
    batched = as_batched(dataset)
    assert batched is not None
    same(batched.get_batch(indices), default_collate([dataset[index] for index in indices]))


@given(fields=st.lists(tensors, min_size=1, max_size=3), indices=index_lists)
def test_a_tensor_dataset_gives_what_collating_gives(fields, indices):
    check(TensorDataset(*fields), indices)


@given(tensor=tensors, indices=index_lists)
def test_a_bare_tensor_gives_what_collating_gives(tensor, indices):
    check(tensor, indices)


@given(
    tensor=tensors,
    chosen=st.lists(st.integers(-9, 8), min_size=9, max_size=9),
    indices=index_lists,
)
@pytest.mark.parametrize(
    "kind", [list, np.array, torch.tensor], ids=["list", "array", "tensor"]
)
def test_a_subset_gives_what_collating_gives(kind, tensor, chosen, indices):
    check(Subset(Subset(TensorDataset(tensor), range(9)), kind(chosen)), indices)


@given(
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=2, max_size=2),
    indices=st.lists(st.integers(-9, 8), min_size=1, max_size=12),
)
def test_a_concatenation_gives_what_collating_gives(dtypes, indices):
    assume(len(set(dtypes)) == 1 or torch.uint16 not in dtypes)  # torch mixes it with none
    parts = [
        TensorDataset(make_tensor(length, (2, 3), dtype, "plain", seed=length))
        for length, dtype in zip((4, 5), dtypes, strict=True)
    ]

    check(ConcatDataset(parts), indices)


@given(first=tensors, second=tensors, indices=index_lists)
@pytest.mark.parametrize("named", [False, True])
def test_a_stack_gives_what_collating_gives(named, first, second, indices):
    parts = (
        {"a": TensorDataset(first), "b": second} if named else (TensorDataset(first), second)
    )

    check(StackDataset(**parts) if named else StackDataset(*parts), indices)


class Structured(Dataset):
    """Samples of many structures, with batches that another process could have made."""

    def __init__(self, offset, key="label"):
        self.offset, self.key = offset, key

    def __len__(self):
        return 5

    def __getitem__(self, index):
        number = index + self.offset
        if not 0 <= index < 5:
            raise IndexError(index)
        point = Point(torch.tensor([number]), number)
        return {"image": torch.full((2, 2), number), "point": point, self.key: [str(number)]}

    def get_batch(self, indices):
        return default_collate([self[index] for index in indices])


@pytest.mark.parametrize("key", ["label", "other"])
@pytest.mark.parametrize("indices", [[1, 7], [7, 1, 9, 0], [-1, -10], [3]], ids=str)
def test_parts_of_a_concatenation_may_have_any_structure(indices, key):
    dataset = ConcatDataset([Structured(0), Structured(100, "label")])

    check(dataset, indices)
    if key == "other" and indices == [7, 1, 9, 0]:
        unlike = ConcatDataset([Structured(0), Structured(100, key)])
        with pytest.raises(KeyError):
            as_batched(unlike).get_batch(indices)


@pytest.mark.parametrize(
    "indices",
    [
        [np.int64(3), np.int16(-1)],
        np.array([3, 1]),
        [torch.tensor(3), torch.tensor(-1)],
        torch.tensor([3, 1]),
        [torch.tensor([3]), torch.tensor([1])],
        [True, True],
        (3, 1),
        range(2, 5),
    ],
    ids=[
        "numpy",
        "array",
        "tensors",
        "tensor",
        "one-element tensors",
        "bools",
        "tuple",
        "range",
    ],
)
def test_indices_of_every_kind_mean_what_they_mean_to_the_dataset(indices):
    check(TensorDataset(torch.arange(12).view(6, 2)), indices)


@pytest.mark.parametrize("of", [torch.conj, torch._neg_view], ids=["conjugated", "negated"])
def test_large_rows_whose_values_are_not_in_memory_are_found(of):
    check(TensorDataset(of(torch.randn(5, 40_000, dtype=torch.complex64))), [4, 0, 2])


@pytest.mark.parametrize(
    ("dataset", "error"),
    [
        (TensorDataset(torch.arange(4)), IndexError),
        (Subset(TensorDataset(torch.arange(4)), [1, 2]), IndexError),
        (
            ConcatDataset([TensorDataset(torch.arange(2)), TensorDataset(torch.arange(2))]),
            Exception,
        ),
    ],
    ids=["tensors", "subset", "concatenation"],
)
@pytest.mark.parametrize("index", [4, -5])
def test_an_index_outside_is_an_error(dataset, error, index):
    with pytest.raises(error):
        as_batched(dataset).get_batch([0, index])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.eye(3)),
        torch.empty(3, 3, device="meta"),
    ],
    ids=["sparse", "subclass", "meta"],
)
def test_tensors_of_other_kinds_are_left_to_collate(tensor):
    assert as_batched(TensorDataset(tensor)) is None


class Transformed(TensorDataset):
    def __getitem__(self, index):
        return tuple(-tensor for tensor in super().__getitem__(index))


class OwnBatches(Structured):
    def __getitem__(self, index):
        return index


class Forwarding:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        return self.dataset[index]["image"] * 2

    def __getattr__(self, name):
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index

    def get_batch(self, indices):
        return indices


@pytest.mark.parametrize(
    "dataset",
    [
        Transformed(torch.arange(4)),
        Subset(Transformed(torch.arange(4)), [0]),
        ConcatDataset([TensorDataset(torch.arange(4)), [1, 2]]),
        OwnBatches(0),
        Forwarding(Structured(0)),
        Stream(),
        [1, 2, 3],
    ],
    ids=[
        "subclass",
        "subset of one",
        "mixed parts",
        "changed samples",
        "forwarding",
        "iterable",
        "list",
    ],
)
def test_a_dataset_whose_batches_could_differ_from_its_samples_is_not_taken(dataset):
    assert as_batched(dataset) is None


def test_a_dataset_with_batches_of_its_own_is_taken_as_it_is():
    dataset = Structured(0)

    assert as_batched(dataset) is dataset


class Negated(DatasetWrapper):
    def transform_images(self, images, indices):
        return -images


class Shifted(DatasetWrapper):
    def transform_sample(self, sample, index):
        return sample + 1


class Replaced(Negated):
    def __getitem__(self, index):
        return torch.zeros(1)


@pytest.mark.parametrize(
    "base",
    [
        torch.arange(12.0).view(6, 2),
        Subset(torch.arange(12.0).view(6, 2), range(6)),
        Structured(0),
    ],
    ids=["tensor", "subset", "own batches"],
)
def test_a_wrapper_of_ours_around_whole_batches_makes_whole_batches(base):
    check(Negated(Negated(base)), [1, 0, 4])


@pytest.mark.parametrize(
    "wrapper",
    [
        Negated([torch.ones(2)]),
        Shifted(torch.arange(4.0)),
        Replaced(torch.arange(4.0)),
        Replaced(Structured(0)),
    ],
    ids=["around samples", "samples alone", "own getitem", "own getitem, own batches"],
)
def test_a_wrapper_whose_batches_could_differ_from_its_samples_is_not_taken(wrapper):
    assert as_batched(wrapper) is None


def test_an_adapted_dataset_can_be_pickled():
    batched = as_batched(Subset(TensorDataset(torch.arange(4)), [3, 1]))

    same(pickle.loads(pickle.dumps(batched)).get_batch([0, 1]), [torch.tensor([3, 1])])


def test_values_that_change_in_the_dataset_are_seen():
    tensor = torch.zeros(4)
    batched = as_batched(TensorDataset(tensor))

    tensor[2] = 5

    same(batched.get_batch([2]), [torch.tensor([5.0])])
