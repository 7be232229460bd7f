"""Batches whose large rows a device reads are those of the dataset; here it reads by NumPy."""

import ctypes

import numpy as np
import pytest
import torch
from torch.utils.data import StackDataset, Subset, TensorDataset

from fastloader.datasets import OMEArrowDataset
from fastloader.datasets import _direct_rows as module
from fastloader.datasets._batched import as_batched
from fastloader.datasets._direct_rows import DirectRows
from fastloader.direct import HostRows
from tests.equality import assert_same

CPU = torch.device("cpu")
PICTURES = "data/nf1_cells.parquet"


class Memory:
    """Copies rows by their addresses, as a device does."""

    def __init__(self):
        self.is_locked = True
        self.obstacle = None
        self.is_lost = False
        self.num_asked = 0
        self.num_rows = 0

    def lock_behind(self):
        self.num_asked += 1

    def copy_rows(self, rows, stride_bytes, positions, target):
        if self.is_lost:
            return False
        assert target.is_contiguous()
        row_bytes = target.nbytes // len(target)
        for number, position in enumerate(positions.tolist()):
            row = rows + position * stride_bytes
            ctypes.memmove(target.data_ptr() + number * row_bytes, row, row_bytes)
        self.num_rows += len(positions)
        return True


@pytest.fixture(autouse=True)
def small_rows_too(monkeypatch):
    """Let rows of any size do; the CPU is the device."""
    monkeypatch.setattr(module, "LEAST_ROW_BYTES", 1)
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(module, "UNIT_BYTES", 1)


def direct(dataset):
    """Return the rows of a dataset, and what locks them all."""
    memory = Memory()
    return DirectRows(as_batched(dataset), lambda _tensor: memory), memory


def arrived(batch):
    if isinstance(batch, HostRows):
        return batch.to(CPU, non_blocking=True)
    if isinstance(batch, dict):
        return {name: arrived(part) for name, part in batch.items()}
    return [arrived(part) for part in batch] if isinstance(batch, list) else batch


def counted(*shape, dtype=torch.float32):
    return torch.randint(0, 120, shape).to(dtype)


DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.bfloat16, torch.float32, torch.uint64,
    torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
INDICES = [3, 3, 0, 8, -1, 5]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(9,), (9, 5), (9, 3, 7), (9, 2, 4, 3)], ids=str)
def test_rows_of_any_type_and_shape_are_those_of_the_dataset(dtype, shape):
    data = TensorDataset(counted(*shape, dtype=dtype), torch.arange(9))
    rows, memory = direct(data)

    batch = rows.take(INDICES)

    assert isinstance(batch[0], HostRows)
    assert batch[0].nbytes == 6 * data.tensors[0][0].nbytes
    assert_same(arrived(batch), as_batched(data).get_batch(INDICES))
    assert memory.num_rows == 12


@pytest.mark.parametrize(
    "tensor",
    [
        counted(18, 4)[::2],
        counted(20, 4)[7:16],
        counted(9, 6, 4)[:, 2:5],
        counted(1, 4).expand(9, 4),
    ],
    ids=["every second", "a part", "rows that lie in one piece", "one row"],
)
def test_tensors_of_any_strides_give_the_same_batch(tensor):
    rows, memory = direct(tensor)

    batch = arrived(rows.take(INDICES))

    wanted = as_batched(tensor).get_batch(INDICES)
    assert_same(batch, wanted)
    assert batch.stride() == wanted.stride()
    assert memory.num_rows == 6


@pytest.mark.parametrize(
    "tensor",
    [
        counted(9, 6, 4)[:, :, 1:3],
        counted(4, 9).T,
        torch.nn.Parameter(counted(9, 4)),
        counted(9, 4, dtype=torch.complex64).conj(),
        counted(9, 4, dtype=torch.complex64).conj().imag,
        torch.zeros(0, 4),
    ],
    ids=["cut rows", "columns", "learnt", "conjugate", "negative", "empty"],
)
def test_rows_that_are_no_plain_bytes_are_left_to_the_dataset(tensor):
    rows, _ = direct(tensor)

    assert not rows


@pytest.mark.parametrize(
    "tensor",
    [
        counted(9, 6, dtype=torch.uint8),
        counted(9, 9, dtype=torch.uint8)[:, :8],
        counted(9 * 8 + 1, dtype=torch.uint8)[1:].view(9, 8),
    ],
    ids=["size", "stride", "address"],
)
def test_rows_that_are_read_byte_by_byte_are_left_to_the_dataset(monkeypatch, tensor):
    monkeypatch.setattr(module, "UNIT_BYTES", 4)
    rows, _ = direct(tensor)

    assert not rows


def test_small_rows_are_gathered_beside_large_ones(monkeypatch):
    monkeypatch.setattr(module, "LEAST_ROW_BYTES", 16)
    data = TensorDataset(counted(9, 4), torch.arange(9))
    rows, _ = direct(data)

    images, labels = rows.take(INDICES)

    assert isinstance(images, HostRows)
    assert labels.tolist() == [3, 3, 0, 8, 8, 5]


@pytest.mark.parametrize(
    "chosen",
    [range(8, 0, -1), [8, 2, 2, 5, 1, 0, 7, 3], np.arange(8), torch.arange(1, 9)],
    ids=["range", "list", "array", "tensor"],
)
def test_subsets_and_stacks_keep_their_structure(chosen):
    data = TensorDataset(counted(9, 4), torch.arange(9))
    subset = Subset(data, chosen)
    stack = StackDataset(images=subset, again=Subset(counted(9, 2), range(8)))
    indices = [3, 0, 7]

    for dataset in (subset, stack, StackDataset(subset, subset)):
        rows, memory = direct(dataset)
        assert_same(arrived(rows.take(indices)), as_batched(dataset).get_batch(indices))
        assert memory.num_rows


@pytest.mark.parametrize("indices", [[9], [-10], [True], [torch.tensor([1])]], ids=str)
def test_what_is_no_row_is_left_to_the_dataset(indices):
    rows, _ = direct(counted(9, 4))

    assert rows.take(indices) is None


def test_nothing_is_read_before_it_is_locked():
    rows, memory = direct(counted(9, 4))
    memory.is_locked = False

    rows.lock_behind()
    memory.obstacle = "it lies in a file"

    assert memory.num_asked == 1
    assert rows.obstacles == ["it lies in a file"]
    assert not rows.is_ready
    assert not isinstance(rows.take([1, 2]), HostRows)


def test_decoded_images_are_all_that_nobody_writes_to():
    data = OMEArrowDataset(PICTURES, dtype=None, progress=False)
    num_bytes = data.images_in_memory().nbytes
    tensors = TensorDataset(counted(len(data), 4))

    assert direct(data)[0].fixed_bytes == num_bytes
    assert direct(Subset(Subset(data, range(4)), [1]))[0].fixed_bytes == num_bytes
    assert direct(tensors)[0].fixed_bytes is None
    assert direct(StackDataset(data, tensors))[0].fixed_bytes is None


def test_channels_last_is_as_torch_stacks_it():
    data = counted(9, 3, 6, 5).to(memory_format=torch.channels_last)
    rows, _ = direct(data)

    if rows:  # versions of torch differ in whether batches keep the order in memory
        wanted = as_batched(data).get_batch(INDICES)
        batch = arrived(rows.take(INDICES))
        assert_same(batch, wanted)
        assert batch.stride() == wanted.stride()


def test_rows_whose_memory_was_unlocked_meanwhile_are_gathered():
    data = counted(9, 5)
    rows, memory = direct(data)
    batch = rows.take(INDICES)
    memory.is_lost = True

    assert_same(arrived(batch), as_batched(data).get_batch(INDICES))


@pytest.mark.parametrize("axes", [None, "ZCYX", "CTYX"])
def test_images_of_a_cache_are_read_where_they_lie(axes):
    data = OMEArrowDataset(PICTURES, dtype=None, axes=axes, label_column=None, progress=False)
    rows, memory = direct(data)

    if data.images_in_memory() is None:
        pytest.skip("images differ in shape")
    batch = arrived(rows.take([2, 0, 2]))

    assert_same(batch, data.get_batch([2, 0, 2]))
    assert memory.num_rows == 3


def test_tensors_of_an_earlier_pass_are_not_looked_at_again():
    images, labels = torch.arange(24.0).view(6, 2, 2), torch.arange(6)
    asked = []

    def memory_of(tensor):
        asked.append(tensor)
        return Memory()

    first = DirectRows(as_batched(TensorDataset(images, labels)), memory_of)
    second = DirectRows(as_batched(TensorDataset(images, labels)), memory_of, first)
    batch = second.take([4, 1])

    assert len(asked) == 2
    assert_same([part.to(CPU) for part in batch], [images[[4, 1]], labels[[4, 1]]])


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.clone(),
        lambda tensor: tensor.view(6, 4),
        lambda tensor: tensor[::2],
        lambda tensor: tensor.view(torch.int32),
        lambda tensor: tensor.requires_grad_(),
    ],
    ids=["elsewhere", "other rows", "every second", "other type", "with gradients"],
)
def test_a_tensor_that_has_changed_its_place_or_form_is_another_one(change):
    tensor = torch.arange(24.0).view(6, 2, 2)
    first = DirectRows(as_batched(tensor), lambda _tensor: Memory())
    changed = change(tensor)

    second = DirectRows(as_batched(changed), lambda _tensor: Memory(), first)

    assert bool(second) == (not changed.requires_grad)
    if second:
        assert_same(second.take([2, 0]).to(CPU), changed[[2, 0]])
