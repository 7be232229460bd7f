"""Collating into memory at hand gives what torch gives."""

import ctypes
import re
import weakref
from collections.abc import Mapping
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, default_collate

from fastloader.engine import _collate, _early_rows
from fastloader.engine._collate import DefaultCollate, collate_map_into
from fastloader.engine._fetch import FetchPlan, make_fetcher
from fastloader.shm import _past_cache
from fastloader.tensors._buffers import BufferPool
from fastloader.threads._crew import Crew, row_team, working_with
from tests.engine.strategies import NUMPY_DTYPES, Point, shapes, tensors
from tests.equality import assert_same


def allocate(shape, dtype):
    # Not the pool, which leaves small tensors to torch.
    return torch.empty(tuple(shape), dtype=dtype)


def collate(samples):
    return DefaultCollate(collate_map_into(allocate))(samples)


@st.composite
def sample_lists(draw):
    """Samples of one structure, with other values in each."""
    count = draw(st.integers(1, 5))
    shape = draw(shapes)
    dtype = draw(st.sampled_from(NUMPY_DTYPES))
    first = draw(tensors(shape=shape))
    images = [
        first + number if first.dtype.is_floating_point else first for number in range(count)
    ]
    rows = [np.full(shape, number).astype(dtype) for number in range(count)]
    kind = draw(st.sampled_from(["tuple", "dict", "named", "nested"]))
    samples = []
    for number, (image, row) in enumerate(zip(images, rows, strict=True)):
        fields = {
            "tuple": (image, number, row),
            "dict": {"image": image, "row": row, "name": f"s{number}", "weight": number / 3},
            "named": Point(image, row),
            "nested": [image, {"row": row, "pair": (number, row)}],
        }
        samples.append(fields[kind])
    return samples


@given(samples=sample_lists())
def test_the_result_is_that_of_torch(samples):
    assert_same(default_collate(samples), collate(samples))


@given(
    dtypes=st.lists(
        st.sampled_from([torch.int32, torch.float32, torch.int64]), min_size=2, max_size=4
    )
)
def test_mixed_dtypes_are_promoted_as_torch_does(dtypes):
    samples = [torch.ones(3, dtype=dtype) for dtype in dtypes]

    assert_same(default_collate(samples), collate(samples))


def test_read_only_arrays_give_a_writable_batch_without_a_warning():
    row = np.arange(4.0)
    row.flags.writeable = False

    batch = collate([row, row])
    batch[0, 0] = 9.0

    assert batch.tolist() == [[9.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "odd",
    [
        lambda row, path: np.memmap(path, row.dtype, "r", shape=row.shape),
        lambda row, path: row[::-1][::-1][::-1],
        lambda row, path: row.astype(row.dtype.newbyteorder()),
    ],
    ids=["mapped", "negative stride", "other byte order"],
)
@pytest.mark.parametrize("second", [float, int], ids=["alike", "mixed"])
def test_arrays_that_torch_does_not_take_as_they_are_are_copied(odd, second, tmp_path):
    row = np.arange(4.0)
    row.tofile(tmp_path / "row")
    rows = [odd(row, tmp_path / "row"), odd(row, tmp_path / "row").astype(second)]

    assert collate(rows).tolist() == [row.tolist() for row in rows]


def test_samples_that_need_gradients_stay_differentiable():
    samples = [torch.ones(2, requires_grad=True) for _ in range(2)]

    assert collate(samples).requires_grad


@pytest.mark.parametrize(
    "samples",
    [
        [np.array(["a", "b"])],
        [np.array([{}], dtype=object)],
        [object()],
        [torch.eye(2).to_sparse()],
    ],
    ids=["strings", "objects", "unknown", "sparse"],
)
def test_what_torch_refuses_is_refused(samples):
    with pytest.raises((TypeError, RuntimeError)) as expected:
        default_collate(samples)

    with pytest.raises(type(expected.value)):
        collate(samples)


def test_a_differentiable_sample_among_others_gives_a_differentiable_batch():
    samples = [torch.zeros(20_000), torch.zeros(20_000, requires_grad=True)]

    assert collate(samples).requires_grad


def test_an_error_is_torchs():
    samples = [torch.zeros(20_000), torch.zeros(20_001)]

    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        collate(samples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize(
    "change",
    [lambda t: t, lambda t: t.T, lambda t: t.conj(), lambda t: t[::2]],
    ids=["plain", "turned", "conjugate", "thin"],
)
def test_a_few_large_tensors_are_collated_as_torch_does(dtype, change):
    samples = [change((torch.randn(200, 200) * 9).to(dtype)) for _ in range(5)]

    found = DefaultCollate(collate_map_into(BufferPool()))(samples)

    assert torch.equal(found, default_collate(samples))


def test_large_tensors_that_do_not_fit_together_are_refused_though_their_sum_would():
    samples = [torch.zeros(200 + more, 200) for more in (0, -50, 50)]

    with pytest.raises(RuntimeError, match="equal size"):
        DefaultCollate(collate_map_into(BufferPool()))(samples)


def test_large_tensors_with_gradients_keep_them():
    samples = [torch.ones(200, 200), torch.ones(200, 200, requires_grad=True)]

    assert DefaultCollate(collate_map_into(BufferPool()))(samples).requires_grad


class Word(dict):
    """A kind of dictionary that somebody has a function for."""


def count_samples(batch, *, collate_fn_map):
    return len(batch)


@pytest.mark.parametrize("kind", [dict, tuple, Word])
def test_functions_that_others_have_put_into_the_table_are_asked(kind):
    table = {**collate_map_into(allocate), kind: count_samples}

    assert DefaultCollate(table)([kind(), kind()]) == 2


def test_functions_for_abstract_kinds_are_asked_as_torch_asks_them():
    table = {**collate_map_into(allocate), Mapping: count_samples}

    assert DefaultCollate(table)([{"image": 1}, {"image": 2}]) == 2


@pytest.mark.parametrize(
    "samples",
    [[(1, 2), (1,)], [{"a": 1}, {"b": 1}], [{"a": object()}], [(None,), (None,)]],
    ids=["lengths", "keys", "kind", "none"],
)
def test_errors_are_those_of_torch(samples):
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever torch raises
        default_collate(samples)

    with pytest.raises(type(expected.value)) as found:
        collate(samples)

    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "numbers",
    [
        [1, -2, 2**63 - 1],
        [True, False],
        [1, True],
        [1, 2.5],
        [2.5, 1],
        [0.1, float("nan"), float("-inf")],
        [np.float32(0.5), np.float32(1)],
        [IntEnum("Kind", "A B")(1), 2],
    ],
    ids=str,
)
@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_numbers_become_what_torch_makes_of_them(numbers, default):
    torch.set_default_dtype(default)
    try:
        assert_same(default_collate(numbers), collate(numbers))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_number_that_is_too_large_raises_what_torch_raises():
    with pytest.raises((RuntimeError, ValueError)) as expected:
        default_collate([1, 2**63])

    with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
        collate([1, 2**63])


KINDS = {
    "tensor": torch.ones(2),
    "tensor of int": torch.tensor([1, 2]),
    "0-d tensor": torch.tensor(3.0),
    "bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "differentiable": torch.ones(2, requires_grad=True),
    "transposed": torch.ones(2, 2).t(),
    "array": np.ones(2),
    "array of int": np.array([1, 2]),
    "0-d array": np.array(3.0),
    "read-only": np.broadcast_to(np.float64(1), (2,)),
    "strings": np.array(["a", "b"]),
    "int": 3,
    "too large": 2**70,
    "float": 2.5,
    "bool": True,
    "complex": 1j,
    "numpy float": np.float32(1),
    "numpy int": np.int64(2),
    "list": [1, 2],
    "mixed list": [torch.ones(2), 3],
    "tuple": (1.0, 2.0),
    "str": "ab",
    "None": None,
    "dict": {"a": 1},
    "larger dict": {"a": 1, "b": 2},
    "named": Point(1, 2),
    "range": range(2),
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("second", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("first", KINDS.values(), ids=KINDS)
def test_samples_of_unlike_kinds_are_to_us_what_they_are_to_torch(first, second):
    samples = [first, second]
    try:
        expected = default_collate(samples)
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        with pytest.raises(type(error)):
            collate(samples)
    else:
        assert_same(expected, collate(samples))


class Watched:
    """Copies past the cache by the C library, and counts."""

    def __init__(self):
        self.num_batches = self.num_rows = self.num_threads = 0

    def copy_row(self, rows, num_threads):
        self.num_rows += 1
        assert num_threads == 1
        copy_by_library(rows)

    def copy_batch(self, rows, num_threads):
        self.num_threads = num_threads
        self.num_batches += 1
        copy_by_library(rows)


def copy_by_library(rows):
    assert rows.is_past_cache
    for place, address in enumerate(rows.positions.tolist()):
        ctypes.memmove(rows.target + place * rows.row_bytes, address, rows.row_bytes)


@pytest.fixture
def watched(monkeypatch):
    """What copies past the cache, of however few bytes."""
    watched = Watched()
    monkeypatch.setattr(_past_cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(_collate, "LEAST_BYTES", 1)
    monkeypatch.setattr(_early_rows, "LEAST_BYTES", 1)
    monkeypatch.setattr(_past_cache, "knows_past_cache", lambda: True)
    monkeypatch.setattr(_collate, "copy_rows", watched.copy_batch)
    monkeypatch.setattr(_early_rows, "copy_rows", watched.copy_row)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield watched
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("kind", [lambda image: image, torch.Tensor.numpy])
def test_batches_of_threads_that_wait_for_each_other_do_not_go_past_the_cache(watched, kind):
    samples = [kind(torch.rand(3, 128, 128)) for _ in range(4)]

    found = DefaultCollate(collate_map_into(allocate, is_crowded=True))(samples)

    assert torch.equal(found, default_collate(samples))
    assert not watched.num_batches
    assert torch.equal(DefaultCollate(collate_map_into(allocate))(samples), found)
    assert watched.num_batches == 1


LARGE = {
    "tensors": (lambda image: image, 1),
    "arrays": (torch.Tensor.numpy, 1),
    "arrays in another order": (lambda image: np.asfortranarray(image.numpy()), 0),
    "channels last": (lambda image: image[None].to(memory_format=torch.channels_last)[0], 0),
    "every second pixel": (lambda image: image.repeat(1, 1, 2)[..., ::2], 0),
    "one value": (lambda image: image[:1, :1, :1].expand(image.shape), 0),
    "negative": (lambda image: torch.complex(image, image).conj().imag, 0),
    "conjugate": (lambda image: torch.complex(image, image).conj(), 0),
    "parameters": (torch.nn.Parameter, 0),
    "odd rows": (lambda image: image[:, 1:, 1:].contiguous(), 0),
}


@pytest.mark.parametrize(("make", "expected"), LARGE.values(), ids=LARGE)
def test_large_samples_are_copied_past_the_cache(watched, make, expected):
    images = torch.rand(4, 3, 96, 64)
    samples = [(make(image), number) for number, image in enumerate(images)]

    found = DefaultCollate(collate_map_into(allocate))(samples)

    assert_same(default_collate(samples), found)
    assert watched.num_batches == expected


def test_large_samples_that_differ_are_torchs_to_refuse(watched):
    samples = [torch.rand(3, 96, 64), torch.rand(3, 64, 96)]

    with pytest.raises(RuntimeError, match="equal size"):
        DefaultCollate(collate_map_into(allocate))(samples)
    assert watched.num_batches == 0


def test_threads_share_the_copy_of_a_very_large_batch(watched):
    torch.set_num_threads(3)
    samples = list(torch.rand(4, 3, 96, 64))

    assert torch.equal(collate(samples), torch.stack(samples))
    assert watched.num_threads == 3


def test_no_thread_starts_for_less_than_goes_past_the_cache(watched, monkeypatch):
    torch.set_num_threads(3)
    samples = list(torch.rand(4, 3, 96, 64))
    monkeypatch.setattr(_collate, "LEAST_BYTES", 2 * samples[0].nbytes)

    collate(samples)

    assert watched.num_threads == 2


@pytest.fixture
def copies(monkeypatch):
    """Of each copy by us: threads, and whether it went past the cache."""
    found, copy = [], _collate.copy_rows

    def watched(rows, num_threads):
        found.append((num_threads, rows.is_past_cache))
        copy(rows, num_threads)

    monkeypatch.setattr(_collate, "copy_rows", watched)
    return found


@pytest.fixture
def set_num_threads():
    num_threads = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(num_threads)


needs_team = pytest.mark.skipif(row_team() is None, reason="was not compiled")


@needs_team
@pytest.mark.parametrize("kind", [lambda image: image, torch.Tensor.numpy])
def test_a_crew_that_is_lent_copies_large_samples(copies, set_num_threads, kind):
    set_num_threads(3)
    samples = [kind(image) for image in torch.rand(64, 1 << 16)]

    with working_with(Crew(2)):
        assert torch.equal(collate(samples), default_collate(samples))
        assert copies == [(3, _past_cache.knows_past_cache())]
        assert torch.equal(collate(samples[:63]), default_collate(samples[:63]))

    assert len(copies) == 1


@needs_team
def test_small_samples_are_not_looked_at_one_by_one_for_a_crew(copies, set_num_threads):
    set_num_threads(3)
    samples = list(torch.rand(512, 1 << 13))

    with working_with(Crew(2)):
        assert torch.equal(collate(samples), default_collate(samples))

    assert not copies


@pytest.mark.parametrize(("num_samples", "num_made"), [(15, 0), (16, 1)])
def test_what_a_cache_may_hold_is_torchs_to_stack_without_the_pool(
    set_num_threads, num_samples, num_made
):
    set_num_threads(2)
    samples, pool = list(torch.rand(num_samples, 1 << 18)), BufferPool()

    found = DefaultCollate(collate_map_into(pool))(samples)

    assert torch.equal(found, default_collate(samples))
    assert pool.num_made == num_made


@pytest.mark.parametrize("num_samples", [2, 5])
@pytest.mark.parametrize(
    "change",
    [
        lambda a: a,
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: np.frombuffer(a.tobytes(), a.dtype),
    ],
    ids=["plain", "turned", "transposed", "read-only"],
)
def test_threads_of_torch_stack_large_arrays_that_it_would_not_take(
    set_num_threads, change, num_samples
):
    set_num_threads(2)
    samples = [change(np.random.rand(512, 256)) for _ in range(num_samples)]

    assert torch.equal(collate(samples), torch.from_numpy(np.stack(samples)))


PARTS = {
    "tensors": lambda image, _number: image.clone(),
    "arrays": lambda image, _number: image.numpy().copy(),
    "tuples": lambda image, number: (image.clone(), number, image.numpy() + 1),
    "dictionaries": lambda image, number: {"x": image.clone(), "name": str(number)},
    "channels last": lambda image, _number: (
        image.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    ),
    "read-only": lambda image, _number: np.frombuffer(image.numpy().tobytes(), np.float32),
    "lists": lambda image, number: [image.clone(), number],
    "nested": lambda image, number: (
        {"x": [image.clone(), image.numpy() * 2]},
        number,
        image + 1,
    ),
    "pieces of others": lambda image, _number: image,
    "parameters": lambda image, _number: torch.nn.Parameter(image.clone()),
    "conjugates": lambda image, _number: torch.complex(image, image).conj(),
    "another shape": lambda image, number: image.clone() if number < 3 else image[:1].clone(),
    "another dtype": lambda image, number: image.clone() if number < 3 else image.double(),
    "another kind": lambda image, number: image.clone() if number < 3 else number,
    "an array": lambda image, number: image.clone() if number < 3 else image.numpy(),
    "a missing field": lambda image, number: {"x": image.clone()} if number < 3 else {},
    "a field more": lambda image, number: (
        {"x": image.clone()} | ({"y": image} if number else {})
    ),
    "odd rows": lambda image, _number: image[:, 1:, 1:].clone(),
}


class Made(Dataset):
    """Samples of one kind."""

    def __init__(self, make, count=4):
        self.make = make
        self.images = torch.rand(count, 3, 96, 64)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.make(self.images[index], index)


def fetcher_of(dataset, collate_fn, on_error="raise"):
    plan = FetchPlan(dataset, False, True, default_collate, False, None, on_error)
    return make_fetcher(plan, collate_fn)


def outcome_of(work):
    try:
        return work()
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        return type(error), str(error), error.__notes__


@pytest.mark.filterwarnings("ignore:Sample 1 has the keys")  # "a field more"
@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("is_subset", [False, True])
def test_samples_that_are_moved_early_give_what_torch_gives(watched, make, is_subset):
    dataset = Subset(Made(make), range(4)) if is_subset else Made(make)
    large = DefaultCollate(collate_map_into(allocate))
    large.early_rows.is_worth_it = True

    expected = outcome_of(lambda: fetcher_of(dataset, default_collate).fetch([0, 1, 2, 3]))
    found = outcome_of(lambda: fetcher_of(dataset, large).fetch([0, 1, 2, 3]))

    assert_same(expected, found)


def test_a_large_sample_is_taken_before_the_next_one_is_made(watched):
    alive = weakref.WeakSet()

    def make(image, number):
        found = image.clone()
        alive.add(found)
        return (found, number, len(alive))

    dataset = Made(make)
    fetcher = fetcher_of(dataset, DefaultCollate(collate_map_into(allocate)))

    assert fetcher.fetch([0, 1, 2, 3])[2].tolist() == [1, 2, 3, 4]  # it is not known before
    batch, numbers, counts = fetcher.fetch([3, 2, 1, 0])

    assert counts.tolist() == [1, 1, 1, 1]
    assert numbers.tolist() == [3, 2, 1, 0]
    assert torch.equal(batch, dataset.images.flip(0))
    assert watched.num_batches == 1  # the other was not copied as a whole
    assert watched.num_rows == 4


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [
        ("lists", 4),
        ("tuples", 8),
        ("nested", 12),
        ("channels last", 0),
        ("pieces of others", 0),
    ],
)
def test_large_parts_are_found_wherever_they_are(watched, kind, num_rows):
    large = DefaultCollate(collate_map_into(allocate))
    large.early_rows.is_worth_it = True

    fetcher_of(Made(PARTS[kind]), large).fetch([0, 1, 2, 3])

    assert watched.num_rows == num_rows
    assert watched.num_batches == (kind == "pieces of others")  # which lie in memory already


def test_small_samples_are_not_moved():
    fetcher = fetcher_of(
        Made(lambda image, _: image.clone()),
        collate := DefaultCollate(collate_map_into(allocate)),
    )

    fetcher.fetch([0, 1])

    assert not collate.early_rows.is_worth_it


def test_samples_are_not_moved_one_by_one_where_threads_share_the_copy(watched):
    large = DefaultCollate(collate_map_into(allocate))
    large.early_rows.is_worth_it = True
    torch.set_num_threads(2)

    fetcher_of(Made(lambda image, _: image.clone()), large).fetch([0, 1, 2, 3])

    assert watched.num_rows == 0


def test_an_index_that_failed_once_and_could_then_be_read_is_named_with_a_misfit():
    class Flaky:
        num_reads = 0

        def __getitem__(self, index):
            self.num_reads += 1
            if self.num_reads == 1:
                raise OSError("not yet")
            return torch.zeros(index)

    with pytest.raises(RuntimeError, match="equal size") as caught:
        fetcher_of(Flaky(), default_collate, on_error="skip").fetch([7, 7, 8])

    assert "shape (7,) at index 7 but (8,) at index 8" in caught.value.__notes__[0]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_becomes_of_no_samples_is_for_the_collate_function_to_say(on_error):
    assert fetcher_of(range(3), list, on_error).fetch([]) == []


def test_a_sample_that_is_skipped_leaves_no_gap(watched):
    def make(image, number):
        if number == 1:
            raise ValueError("broken")
        return image.clone()

    dataset = Made(make)
    large = DefaultCollate(collate_map_into(allocate))
    large.early_rows.is_worth_it = True

    found = fetcher_of(dataset, large, on_error="skip").fetch([0, 1, 2])

    assert torch.equal(found, dataset.images[[0, 2]])
