"""check_dataset finds what would break in workers, and names it."""

import copy
import os
import random
import signal
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info

from fastloader.datasets import Augment, ChannelStatistics, Standardize
from fastloader.errors import DatasetCheckError, SettingsError
from fastloader.testing import _apart, check_dataset
from fastloader.testing._apart import run_apart
from fastloader.testing._compare import difference, num_bytes
from fastloader.testing._dataset import check_threads
from fastloader.testing._report import FailedError
from fastloader.transforms import RandomFlip

pytestmark = pytest.mark.multiprocess


def outcomes(report):
    return {check.name: check.outcome for check in report.checks}


def failed(report):
    return {check.name: check.detail for check in report.checks if check.outcome == "failed"}


class Good(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"image": torch.full((2, 3), float(index)), "name": f"cell {index}"}


class WithLock(Good):
    def __init__(self):
        self.readers = [threading.Lock()]


class OwnGenerator(Good):
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index):
        return self.generator.random(3)


class GlobalGenerators(Good):
    def __getitem__(self, index):
        return torch.rand(2), np.random.random(), random.random()


class Pair(NamedTuple):
    first: int
    second: int


class Plain:
    def __init__(self, x):
        self.x = x


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


EYE = torch.eye(3)


def nested(length):
    parts = [torch.zeros(1), torch.zeros(length)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


class TupleBatch(Good):
    def __getitem__(self, index):
        return torch.full((2,), float(index)), index

    def get_batch(self, indices):
        images, numbers = zip(*(self[index] for index in indices), strict=True)
        return torch.stack(images), torch.tensor(numbers)


class WrongBatch(Good):
    def get_batch(self, indices):
        images = torch.stack([self[index]["image"] for index in indices])
        images[0, 0, 0] += 1
        return {"image": images, "name": [self[index]["name"] for index in indices]}


class NewBatch(Good):
    """Says that its batches are new, as they are."""

    makes_new_batches = True
    images = torch.arange(400.0).reshape(100, 4)

    def __getitem__(self, index):
        return {"image": self.images[index], "same": self.images[index]}

    def get_batch(self, indices):
        rows = list(indices)
        return {"image": self.images[rows], "same": self.images[rows]}


class ViewBatch(NewBatch):
    """Hands out its own memory where it can."""

    def get_batch(self, indices):
        rows = list(indices)
        if rows == list(range(len(rows))):
            return {"image": self.images[: len(rows)], "same": self.images[rows]}
        return super().get_batch(rows)


class TwiceTheSame(NewBatch):
    """Two fields that share memory."""

    def get_batch(self, indices):
        images = self.images[list(indices)]
        return {"image": images, "same": images}


class WrongItems(Good):
    def __getitems__(self, indices):
        return [self[index] for index in sorted(indices)]


class DependsOnWorker(Good):
    def __getitem__(self, index):
        info = get_worker_info()
        return 0 if info is None else info.id + 1


class Hoarder(Good):
    def __init__(self):
        self.kept = []

    def __getitem__(self, index):
        self.kept.append(np.ones(500_000))
        return index


class Stream(IterableDataset):
    def __init__(self, divide):
        self.divide = divide

    def __iter__(self):
        info = get_worker_info() if self.divide else None
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, 40, step))


class MovesAPosition(Good):
    """Reads as files are read: to a place, then from there."""

    def __init__(self):
        self.position = 0

    def __getitem__(self, index):
        self.position = index
        time.sleep(1e-4)  # a read lets other threads run
        return super().__getitem__(self.position)


class OneSample(Good):
    """Gives all samples in the same memory."""

    def __init__(self):
        self.memory = torch.zeros(1000)

    def __getitem__(self, index):
        self.memory[:] = index
        return self.memory


class SharedBatch(Good):
    """Makes all batches in the same memory."""

    def __init__(self):
        self.memory = torch.zeros(100, 4)

    def get_batch(self, indices):
        batch = self.memory[: len(indices)]
        for row, index in enumerate(indices):
            batch[row] = index
        time.sleep(1e-4)  # decoding lets other threads run
        return batch.clone()


@pytest.mark.parametrize(
    "dataset",
    [MovesAPosition(), SharedBatch(), OneSample()],
    ids=["samples", "batches", "memory"],
)
def test_threads_that_get_in_each_others_way_are_found(dataset):
    check = check_threads(dataset, seconds=60)

    assert check.outcome == "failed"
    assert "in threads, sample" in check.detail
    assert "not safe to read from several threads" in check.detail


def test_threads_that_do_not_are_let_be():
    assert check_threads(Good(), seconds=60).outcome == "ok"


class Crashes(Good):
    """Ends the process where a second thread reads."""

    def __getitem__(self, index):
        if threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().__getitem__(index)


def test_threads_that_crash_end_a_process_of_their_own():
    report = check_dataset(Crashes(), threads=True)

    assert "killed by signal: Segmentation fault" in failed(report)["same rows in threads"]


class SlowStorage(Good):
    """Storage that takes long for each sample."""

    def __getitem__(self, index):
        time.sleep(0.2)
        return super().__getitem__(index)


def test_threads_are_checked_within_the_time_given():
    began = time.monotonic()
    check = check_threads(SlowStorage(), seconds=60)
    between = time.monotonic()
    sooner = check_threads(SlowStorage(), seconds=0.5)
    ended = time.monotonic()

    assert check.outcome == "ok"
    assert between - began < 30  # 8 samples by one thread, and by four at once, take 3.2
    assert sooner.detail.startswith("2 rows")
    assert ended - between < between - began


def test_a_check_that_comes_to_no_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(_apart, "_START_SECONDS", 0.2)

    with pytest.raises(FailedError, match=r"WorkerTimeoutError: .* timed out"):
        run_apart(hang, 0.3)


def hang():
    time.sleep(60)


def test_a_good_dataset_passes():
    report = check_dataset(Good(), raise_on_failure=True)

    assert report.ok
    assert outcomes(report) == {
        "can be pickled": "ok",
        "same sample twice": "ok",
        "batch equals samples": "skipped",
        "same rows for 0, 1, 2 workers": "ok",
        "memory growth of a worker": "ok",
        "cost of a sample": "ok",
    }


def test_our_wrappers_pass():
    images = torch.randint(0, 255, (12, 1, 6, 6), dtype=torch.uint8)
    base = TensorDataset(images, torch.arange(12))
    dataset = Augment(Standardize(base, ChannelStatistics.of(base)), RandomFlip())

    report = check_dataset(dataset, threads=True)

    assert failed(report) == {}
    assert outcomes(report)["batch equals samples"] == "ok"


def test_an_attribute_that_cannot_be_pickled_is_named():
    report = check_dataset(WithLock(), start_method="fork")

    assert "dataset.readers[0] (a _thread.lock)" in failed(report)["can be pickled"]


def test_a_generator_of_its_own_is_found():
    report = check_dataset(OwnGenerator())

    assert "read again" in failed(report)["same sample twice"]


def test_a_dataset_need_not_be_deterministic():
    assert check_dataset(OwnGenerator(), deterministic=False).ok


def test_draws_from_the_global_generators_are_allowed_and_undone():
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)

    report = check_dataset(GlobalGenerators())

    assert "same sample twice" not in failed(report)
    assert torch.rand(1) == expected


def test_a_batch_that_differs_is_found():
    report = check_dataset(WrongBatch())

    assert "in get_batch, ['image'] differs in 1 of" in failed(report)["batch equals samples"]


def test_batches_in_memory_of_their_own_are_told_from_others_that_claim_to_be():
    assert check_dataset(NewBatch()).ok
    for dataset in (ViewBatch(), TwiceTheSame()):
        message = failed(check_dataset(dataset))["batch equals samples"]
        assert "makes_new_batches = True" in message


def test_getitems_in_another_order_is_found():
    assert "__getitems__" in failed(check_dataset(WrongItems()))["batch equals samples"]


def test_rows_that_depend_on_the_worker_are_found():
    report = check_dataset(DependsOnWorker())

    assert "with 1 workers" in failed(report)["same rows for 0, 1, 2 workers"]


def test_memory_that_grows_is_found():
    report = check_dataset(Hoarder())

    assert "MB per epoch" in failed(report)["memory growth of a worker"]


def test_a_stream_that_every_worker_repeats_is_found():
    report = check_dataset(Stream(divide=False))

    assert "get_worker_info" in failed(report)["same rows for 0, 1, 2 workers"]


def test_a_divided_stream_passes():
    assert failed(check_dataset(Stream(divide=True))) == {}


class Slow(Good):
    def __getitem__(self, index):
        time.sleep(0.01)
        return np.zeros((3, 5), np.float32)


def test_the_cost_is_told_in_time_and_size():
    report = check_dataset(Slow(), num_samples=2)

    [cost] = [check.detail for check in report.checks if check.name == "cost of a sample"]
    assert float(cost.split(" ms")[0]) >= 10
    assert "60 bytes" in cost


def test_an_empty_dataset_passes():
    assert check_dataset([]).ok


def test_the_exception_holds_the_report():
    with pytest.raises(DatasetCheckError, match=r"failed +can be pickled") as caught:
        check_dataset(WithLock(), start_method="fork", raise_on_failure=True)

    assert "WithLock (20 samples)" in str(caught.value)


@pytest.mark.parametrize(
    ("expected", "found", "told"),
    [
        pytest.param(1, 1.0, "it is a float, not a int", id="type"),
        pytest.param([1, 2], [1], "it has length 1, not 2", id="length"),
        pytest.param([1, 2], (1, 3), "[1] is 3, not 2", id="in a tuple"),
        pytest.param(Pair(1, 2), (1, 2), "it is a tuple, not a Pair", id="named tuple"),
        pytest.param({"a": 1}, {"b": 1}, "keys ['b'], not ['a']", id="keys"),
        pytest.param({"a": [1, 2]}, {"a": [1, 3]}, "['a'][1] is 3, not 2", id="value"),
        pytest.param(torch.zeros(2), torch.zeros(3), "it has shape", id="shape"),
        pytest.param(np.zeros(2), np.zeros(2, "f4"), "it has dtype", id="dtype"),
        pytest.param(torch.tensor(0.0), torch.tensor(-0.0), "1 of 1 values", id="sign of 0"),
        pytest.param(Plain(1), Plain(2), ".x is 2, not 1", id="attribute"),
        pytest.param(Slotted(1), Slotted(2), ".x is 2, not 1", id="slot"),
        pytest.param(Plain([1]), Plain([1, 2]), ".x has length 2, not 1", id="in an object"),
        pytest.param(EYE.to_sparse(), 2 * EYE.to_sparse(), ".values()", id="sparse"),
        pytest.param(EYE.to_sparse(), EYE, "has parts ['.strided'], not", id="not sparse"),
        pytest.param(nested(2), nested(3), "[1] has shape", id="nested"),
    ],
)
def test_a_difference_is_named(expected, found, told):
    assert told in difference(expected, found)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="NaN"),
        pytest.param(torch.tensor([float("nan")]), id="tensor of NaN"),
        pytest.param(np.empty((0, 3)), id="empty array"),
        pytest.param(torch.empty(0), id="empty tensor"),
        pytest.param("text", id="text"),
        pytest.param(None, id="None"),
        pytest.param(range(3), id="range"),
        pytest.param(object, id="class"),
        pytest.param(Plain([1, EYE]), id="object"),
        pytest.param(Slotted("a"), id="slots"),
        pytest.param(EYE.to_sparse(), id="sparse"),
        pytest.param(nested(2), id="nested"),
    ],
)
def test_a_value_does_not_differ_from_its_copy(value):
    assert difference([value], [copy.deepcopy(value)]) is None


@pytest.mark.parametrize(
    "layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr], ids=str
)
@pytest.mark.filterwarnings("ignore:Sparse")  # each of them is called a beta
def test_compressed_tensors_are_compared(layout):
    blocks = (1, 1) if layout is torch.sparse_bsr else None

    def compressed(values):
        return values.to_sparse(layout=layout, blocksize=blocks)

    assert difference(compressed(EYE), compressed(EYE)) is None
    assert ".values() differs" in difference(compressed(EYE), compressed(2 * EYE))


@pytest.mark.parametrize(
    ("value", "size"),
    [
        pytest.param({"a": [torch.zeros(2), b"abc", None, 3]}, 11, id="container"),
        pytest.param(Plain(torch.zeros(3)), 12, id="object"),
        pytest.param(Slotted(np.zeros(3)), 24, id="slots"),
        pytest.param(nested(2), 12, id="nested"),
        pytest.param(EYE.to_sparse(), 60, id="sparse"),
    ],
)
def test_bytes_of_a_sample_are_counted(value, size):
    assert num_bytes(value) == size


class OfObjects(Good):
    def __getitem__(self, index):
        return Plain(Slotted(torch.full((3,), float(index))))


def test_samples_of_any_class_are_compared_by_their_attributes():
    report = check_dataset(OfObjects(), start_method="fork")

    assert report.ok, report
    assert "12 bytes" in str(report)


def test_a_batch_may_be_a_tuple_where_collating_makes_a_list():
    report = check_dataset(TupleBatch(), start_method="fork")

    assert report.ok, report


@pytest.mark.parametrize("dataset", [3, iter("abc")], ids=["number", "iterator"])
def test_what_is_no_dataset_is_refused(dataset):
    with pytest.raises(SettingsError, match=r"has no length: .*IterableDataset"):
        check_dataset(dataset)
