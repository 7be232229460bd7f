"""Several datasets as one: what is read, in which pass, with which random draws."""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from fastloader.datasets import MixedDataset
from fastloader.datasets._batched import as_batched, has_independent_rows
from fastloader.errors import SettingsError
from fastloader.randomness._seeding import DrawScope, current_draw_scope, draw_scope
from fastloader.testing import check_dataset
from tests.equality import assert_same


class Squares(Dataset):
    def __init__(self, length):
        self.length = length
        self.epochs = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.tensor(index**2)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


class Listed(Squares):
    def __getitems__(self, indices):
        return [torch.tensor(index**2) for index in indices]


class Scoped(Squares):
    def __getitem__(self, index):
        scope = current_draw_scope()
        return scope.seed, scope.epoch


class Broken(Squares):
    def __getitem__(self, index):
        raise ValueError("broken")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def _batched(**options):
    sources = {"a": TensorDataset(torch.arange(5)), "b": TensorDataset(torch.arange(7, 10))}
    return MixedDataset(sources, **options)


def test_samples_come_one_source_after_the_other():
    mixed = MixedDataset({"a": range(3), "b": "xy"})

    assert list(mixed) == [0, 1, 2, "x", "y"]
    assert len(mixed) == 5
    assert mixed[-1] == "y"
    assert (mixed.names, mixed.lengths) == (("a", "b"), (3, 2))


def test_samples_can_come_with_the_names_of_their_sources():
    mixed = MixedDataset({"a": range(1), "b": "x"}, with_names=True)

    assert list(mixed) == [("a", 0), ("b", "x")]


def test_an_index_before_the_first_is_refused():
    with pytest.raises(IndexError, match="Index -6 of a dataset of 5 samples"):
        MixedDataset({"a": range(5)})[-6]


def test_an_index_that_is_no_number_is_refused():
    with pytest.raises(IndexError, match="indices of samples"):
        MixedDataset({"a": range(5)})["first"]


@pytest.mark.parametrize("with_names", [False, True], ids=["bare", "named"])
@pytest.mark.parametrize("indices", [[1], [4, 0, 2], [6, 0, 5, 1, 7], [13, 6, 8]], ids=str)
def test_a_batch_equals_its_samples_collated(indices, with_names):
    mixed = _batched(with_names=with_names)

    assert_same(default_collate([mixed[i] for i in indices]), mixed.get_batch(indices))


def test_sources_of_another_structure_share_no_batch_but_each_has_its_own():
    sources = {"a": torch.arange(4), "b": TensorDataset(torch.arange(4))}
    mixed = MixedDataset(sources)

    assert mixed.get_batch([0, 1]).tolist() == [0, 1]
    assert mixed.get_batch([5, 6])[0].tolist() == [1, 2]
    with pytest.raises(TypeError):
        mixed.get_batch([0, 5])


def test_sources_of_another_dtype_share_a_batch_as_collating_makes_it():
    sources = {
        "a": torch.zeros(2, dtype=torch.float32),
        "b": torch.ones(2, dtype=torch.float64),
    }
    mixed = MixedDataset(sources)

    expected = default_collate([mixed[0], mixed[3]])
    assert_same(expected, mixed.get_batch([0, 3]))


def test_whole_batches_are_made_exactly_if_all_sources_make_them():
    assert as_batched(_batched()) is not None
    assert as_batched(MixedDataset({"a": torch.arange(3), "b": Squares(3)})) is None


def test_batches_are_never_made_several_at_once():
    assert not has_independent_rows(as_batched(_batched()))


def test_many_samples_are_read_in_one_call_if_a_source_can():
    mixed = MixedDataset({"a": Listed(4), "b": range(4)})

    assert [int(sample) for sample in mixed.__getitems__([3, 5, 1])] == [9, 1, 1]
    assert not hasattr(MixedDataset({"a": Squares(4)}), "__getitems__")


@pytest.mark.parametrize("kind", [Squares, Listed], ids=["single", "listed"])
def test_a_source_is_told_of_each_pass_before_it_is_read(kind):
    source = kind(4)
    mixed = MixedDataset({"other": range(3), "a": source})
    one = np.array([1])

    for number in (0, 0, 1, 2):
        assert mixed[mixed.indices_of(1, one, number)[0]] == 1

    assert source.epochs == [0, 1, 2]


def test_the_loader_s_epoch_reaches_all_sources():
    sources = {"a": Squares(2), "b": Squares(2)}

    MixedDataset(sources).set_epoch(3)

    assert [source.epochs for source in sources.values()] == [[3], [3]]


def test_draws_depend_on_source_and_pass():
    mixed = MixedDataset({"a": Scoped(2), "b": Scoped(2)})
    indices = [
        0,
        2,
        *(int(mixed.indices_of(s, np.array([0]), p)[0]) for s in (0, 1) for p in (0, 1)),
    ]

    with draw_scope(DrawScope(seed=5, epoch=9)):
        scopes = [mixed[index] for index in indices]

    seeds = [seed for seed, _ in scopes]
    assert [epoch for _, epoch in scopes] == [9, 9, 0, 1, 0, 1]
    assert seeds[0] == seeds[2] == seeds[3] != seeds[1] == seeds[4] == seeds[5]


def test_an_error_names_the_source_and_where_in_it():
    mixed = MixedDataset({"good": Squares(3), "bad": Broken(3)})

    with pytest.raises(ValueError, match="broken") as caught:
        mixed[mixed.indices_of(1, np.array([2]), 4)[0]]

    assert caught.value.__notes__ == [
        "Raised by the source 'bad' at its index 2, in pass 4 over it."
    ]


@pytest.mark.parametrize(
    "sources",
    [
        {"a": torch.arange(3), "b": torch.arange(3, 6)},
        {"a": Squares(3), "b": Squares(3)},
        {"a": Listed(3), "b": Squares(3)},
    ],
    ids=["batched", "single", "listed"],
)
def test_a_copy_reads_the_same(sources):
    mixed = MixedDataset(sources, with_names=True)

    copy = pickle.loads(pickle.dumps(mixed))

    assert type(copy) is type(mixed)
    assert_same(list(mixed), list(copy))


@pytest.mark.multiprocess
def test_it_keeps_the_contract_of_datasets():
    check_dataset(_batched())


def test_an_iterable_source_is_refused():
    with pytest.raises(SettingsError, match="'s' is an IterableDataset"):
        MixedDataset({"s": Stream()})


def test_a_mix_needs_sources():
    with pytest.raises(SettingsError, match="one source or more"):
        MixedDataset({})


class Slow(Squares):
    """Fails if it is told of another pass while it is read."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        epoch = self.epoch
        time.sleep(0.002)
        assert epoch == self.epoch
        return epoch


def test_threads_of_different_passes_do_not_meet_in_a_source():
    mixed = MixedDataset({"a": Slow(4)})
    numbers = [0, 1, 0, 1, 2, 0, 2, 1] * 3
    indices = [int(mixed.indices_of(0, np.array([1]), number)[0]) for number in numbers]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(mixed.__getitem__, indices)) == numbers
