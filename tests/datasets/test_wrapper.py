import copy
import pickle
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    default_collate,
)

from fastloader.datasets import DatasetWrapper
from fastloader.typing import BatchedDataset, LiveDataset
from tests.start_methods import START_METHODS


def image(index):
    return torch.full((1, 2, 2), float(index))


class Opaque(Dataset):
    plate = "B4"

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return image(index), index


class Batched(Opaque):
    def __getitem__(self, index):
        return image(index), index

    def get_batch(self, indices):
        return torch.stack([image(index) for index in indices]), torch.tensor(indices)


class Listed(Opaque):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(image(index), index) for index in range(8)])


class Live(Opaque):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def live_state(self):
        return self.epoch

    def load_live_state(self, state):
        self.epoch = state


class AddIndex(DatasetWrapper):
    def transform_images(self, images, indices):
        return images + torch.tensor(indices).reshape(-1, 1, 1, 1)


class Invert(DatasetWrapper):
    def transform_images(self, images, indices):
        return -images


class InvertOne(DatasetWrapper):
    def transform_image(self, image, index):
        return -image


class WithLabel(DatasetWrapper):
    def transform_sample(self, sample, index):
        return *sample, "extra"


BASES = [Opaque, Batched, Listed, Stream]


def is_same(first, second):
    return all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b))
        for a, b in zip(first, second, strict=True)
    )


def test_a_wrapper_that_overrides_nothing_changes_nothing():
    assert is_same(DatasetWrapper(Opaque())[3], Opaque()[3])


def test_the_index_reaches_the_override():
    assert AddIndex(Opaque())[3][0].unique().item() == 6


@given(
    wrappers=st.lists(st.sampled_from([Invert, InvertOne, DatasetWrapper]), max_size=4),
    indices=st.lists(st.integers(0, 7), min_size=1, max_size=6),
)
def test_a_batch_equals_its_samples_through_any_wrappers(wrappers, indices):
    dataset = reduce(lambda base, wrapper: wrapper(base), wrappers, Batched())

    batch = dataset.get_batch(indices)

    assert is_same(batch, default_collate([dataset[index] for index in indices]))


def test_reading_many_samples_in_one_call_equals_reading_each():
    dataset = Invert(Listed())

    samples = dataset.__getitems__([3, 1])

    assert all(map(is_same, samples, [dataset[3], dataset[1]]))


@pytest.mark.parametrize("base", BASES)
def test_a_wrapper_is_what_its_base_is(base):
    dataset = Invert(base())

    assert isinstance(dataset, Invert)
    assert isinstance(dataset, IterableDataset) == (base is Stream)
    assert isinstance(dataset, BatchedDataset) == (base is Batched)
    assert hasattr(dataset, "__getitems__") == (base is Listed)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "duplicate",
    [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_a_copy_is_of_the_same_kind(base, duplicate):
    dataset = Invert(Invert(base()), field=0)

    twin = duplicate(dataset)

    assert type(twin) is type(dataset)
    assert twin.field == 0
    assert type(twin.dataset) is type(dataset.dataset)


def test_a_wrapper_around_a_stream_streams():
    values = [sample[0].unique().item() for sample in Invert(Stream())]

    assert values == [-index for index in range(8)]


def test_wrappers_nest():
    assert is_same(Invert(Invert(Batched())).get_batch([5]), Batched().get_batch([5]))


def test_a_subclass_of_a_specialised_class_is_specialised_for_its_own_base():
    specialised = type(Invert(Batched()))

    assert type(specialised(Opaque())) is Invert


def test_the_wrapper_knows_the_length_of_its_base():
    assert len(Invert(Opaque())) == 8


def test_a_stream_without_length_has_none():
    with pytest.raises(TypeError):
        len(Invert(Stream()))


def test_public_attributes_of_the_base_are_found():
    assert Invert(Invert(Opaque())).plate == "B4"


@pytest.mark.parametrize("name", ["absent", "_private", "get_batch"])
def test_other_attributes_are_not_found(name):
    with pytest.raises(AttributeError, match=f"'Invert' object has no attribute '{name}'"):
        getattr(Invert(Opaque()), name)


class Unreadable(Opaque):
    @property
    def plate(self):
        return self.table


def test_why_an_attribute_of_the_base_cannot_be_read_is_said():
    with pytest.raises(AttributeError, match="no attribute 'plate'") as caught:
        Invert(Unreadable()).plate  # noqa: B018

    assert "'table'" in str(caught.value.__cause__)


def test_the_epoch_reaches_the_base():
    dataset = Invert(Invert(Live()))

    dataset.set_epoch(3)

    assert dataset.epoch == 3


def test_an_epoch_for_a_base_without_one_is_ignored():
    Invert(Opaque()).set_epoch(3)


def test_the_live_state_is_that_of_the_base():
    dataset, copied = Invert(Live()), Invert(Live())
    dataset.set_epoch(3)

    copied.load_live_state(dataset.live_state())

    assert copied.epoch == 3
    assert isinstance(dataset, LiveDataset)


def test_plain_attributes_of_a_wrapper_are_live():
    dataset, copied = Invert(Opaque()), Invert(Opaque())
    dataset.strength, dataset.names = 3.5, ["a"]

    copied.load_live_state(dataset.live_state())

    assert copied.strength == 3.5
    assert not hasattr(copied, "names")


@pytest.mark.parametrize(
    "between",
    [
        lambda base: Subset(base, [0, 1]),
        lambda base: ConcatDataset([Opaque(), base]),
        lambda base: StackDataset(first=Opaque(), second=base),
    ],
    ids=["subset", "concatenation", "stack"],
)
def test_live_state_is_found_through_datasets_of_torch(between):
    dataset, inner = Invert(between(Live())), Live()
    copied = Invert(between(inner))
    dataset.set_epoch(3)

    copied.load_live_state(dataset.live_state())

    assert inner.epoch == 3


def test_arrays_stay_arrays():
    source = np.arange(4.0, dtype=np.float32).reshape(1, 2, 2)
    source.flags.writeable = False

    changed = Invert([(source, 0)])[0][0]

    assert isinstance(changed, np.ndarray)
    assert np.array_equal(changed, -source)


def test_a_whole_sample_can_be_changed():
    assert WithLabel(Opaque())[2][1:] == (2, "extra")


def test_the_field_says_where_the_image_is():
    dataset = Invert([{"mask": image(1), "image": image(2)}], field="image")

    assert [x.unique().item() for x in dataset[0].values()] == [1, -2]


def test_a_subset_of_a_wrapper_reads_through_it():
    assert Subset(Invert(Opaque()), [4])[0][0].unique().item() == -4


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize("base", [Listed, Stream])
def test_workers_see_what_the_main_process_sees(base, method):
    dataset = Invert(base())

    loader = DataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context=method)

    assert is_same(next(iter(loader)), next(iter(DataLoader(dataset, batch_size=8))))
