"""Standardized images: right, the same in batches and alone, wherever the image is."""

import pickle
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from fastloader import FastLoader
from fastloader.datasets import ChannelStatistics, DatasetWrapper, Standardize, standardize
from fastloader.errors import SettingsError, StatisticsError
from tests.start_methods import START_METHODS


class Pair(NamedTuple):
    image: torch.Tensor
    label: int


@dataclass
class Cell:
    image: torch.Tensor
    label: int


class Batched:
    def __init__(self, images):
        self.images = torch.as_tensor(images)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index

    def get_batch(self, indices):
        return torch.stack([self.images[i] for i in indices]), torch.tensor(indices)


class Stream(IterableDataset):
    def __init__(self, images):
        self.images = images

    def __iter__(self):
        return iter(self.images)


def images_of(dtype, shape=(6, 3, 5, 7)):
    return (np.random.default_rng(0).random(shape) * 200).astype(dtype)


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_channels_get_mean_0_and_std_1(dtype):
    images = images_of(dtype)

    dataset = Standardize(list(images), ChannelStatistics.of(list(images)))
    result = np.stack([dataset[i] for i in range(6)])

    assert result.dtype == np.float32
    np.testing.assert_allclose(result.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(result.std((0, 2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize(("dtype", "offset"), [("uint16", 60_000), ("float32", 1e6)])
def test_channels_that_vary_little_lose_no_digits(dtype, offset):
    noise = np.random.default_rng(0).normal(size=(6, 2, 9, 9)) * 3
    images = (noise + offset + 0.37).astype(dtype)
    dataset = Standardize(images, ChannelStatistics.of(images))

    result = np.stack([dataset[index] for index in range(len(images))])

    values = images.astype(np.float64)
    mean, std = (of(values, axis=(0, 2, 3), keepdims=True) for of in (np.mean, np.std))
    np.testing.assert_allclose(result, (values - mean) / std, rtol=1e-6, atol=1e-6)
    assert result.dtype == np.float32


def test_means_beyond_float32_are_taken_off():
    images = np.array([1e60, 3e60]).reshape(2, 1, 1, 1)

    statistics = ChannelStatistics.of(images)

    assert standardize(torch.from_numpy(images), statistics).flatten().tolist() == [-1.0, 1.0]
    assert standardize(torch.zeros(1, 1, 1, 1), statistics).item() == -2.0


def test_one_value_for_all_channels():
    images = images_of(np.uint8)
    statistics = ChannelStatistics.of(list(images), channel_axis=None)

    result = standardize(torch.from_numpy(images), statistics)

    expected = (images - images.mean()) / images.std()
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_channels_may_come_last():
    images = images_of(np.uint8, (4, 5, 6, 3))
    statistics = ChannelStatistics.of(list(images), channel_axis=2)

    result = standardize(torch.from_numpy(images), statistics)

    expected = (images - images.mean((0, 1, 2))) / images.std((0, 1, 2))
    np.testing.assert_allclose(result, expected, atol=1e-5)


@given(
    images=hnp.arrays(
        st.sampled_from([np.uint8, np.uint16, np.int32, np.float32, np.float64]),
        st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
        elements=st.integers(0, 250),
    ),
    data=st.data(),
)
def test_a_batch_equals_its_samples_to_the_last_bit(images, data):
    dataset = Standardize(Batched(images), ChannelStatistics.of_images(images))
    indices = data.draw(st.lists(st.integers(0, len(images) - 1), min_size=1))

    batch = dataset.get_batch(indices)

    expected = default_collate([dataset[i] for i in indices])
    assert batch[0].dtype == expected[0].dtype
    assert torch.equal(batch[0].view(torch.int32), expected[0].view(torch.int32))
    assert torch.equal(batch[1], expected[1])


def test_a_large_batch_equals_its_samples_to_the_last_bit():
    """More than one tile, and rows whose ends no vector instruction fits."""
    images = torch.randint(0, 60_000, (9, 3, 251, 257)).to(torch.uint16)
    dataset = Standardize(Batched(images), ChannelStatistics.of_images(images))

    batch, _ = dataset.get_batch(range(9))

    assert all(torch.equal(batch[i], dataset[i][0]) for i in range(9))


def test_a_constant_channel_becomes_0_in_other_images_too():
    statistics = ChannelStatistics.of([np.full((1, 4, 4), 0.1)])

    result = standardize(torch.rand(2, 1, 4, 4), statistics)

    assert result.abs().max() == 0


@pytest.mark.parametrize(
    ("make", "read"),
    [
        pytest.param(lambda image: image, lambda sample: sample, id="image"),
        pytest.param(lambda image: (image, 3), lambda sample: sample[0], id="tuple"),
        pytest.param(lambda image: {"x": image}, lambda sample: sample["x"], id="dict"),
        pytest.param(
            lambda image: Pair(image, 3), lambda sample: sample.image, id="namedtuple"
        ),
        pytest.param(lambda image: Cell(image, 3), lambda sample: sample.image, id="dataclass"),
    ],
)
def test_any_structure_of_samples(make, read):
    images = torch.from_numpy(images_of(np.float32))
    samples = [make(image) for image in images]

    dataset = Standardize(samples, ChannelStatistics.of(samples))

    expected = standardize(images, dataset.statistics)
    assert type(dataset[2]) is type(samples[2])
    assert torch.equal(read(dataset[2]), expected[2])


def test_the_base_is_not_changed():
    images = torch.from_numpy(images_of(np.float32))
    before = images.clone()

    standardize(images, ChannelStatistics.of_images(images))

    assert torch.equal(images, before)


def test_an_iterable_dataset():
    images = list(images_of(np.uint8))

    dataset = Standardize(Stream(images), ChannelStatistics.of(Stream(images)))

    assert isinstance(dataset, IterableDataset)
    expected = standardize(torch.from_numpy(np.stack(images)), dataset.statistics)
    np.testing.assert_array_equal(np.stack(list(dataset)), expected)


@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (2,), (2, 5, 5)])
def test_other_channels_than_those_of_the_statistics_are_an_error(shape):
    statistics = ChannelStatistics.of_images(images_of(np.uint8))

    with pytest.raises(StatisticsError, match="3 channels on axis 0"):
        standardize(torch.zeros(shape), statistics)


@pytest.mark.parametrize("statistics", [3, None, "stats.json", ((0.5,), (0.5,))], ids=repr)
@pytest.mark.parametrize(
    "use",
    [
        Standardize,
        lambda images, statistics: standardize(torch.from_numpy(images), statistics),
    ],
    ids=["wrapper", "function"],
)
def test_what_are_no_statistics_is_an_error_with_advice(use, statistics):
    with pytest.raises(SettingsError, match=r"but got .*ChannelStatistics.of\(dataset\)"):
        use(images_of(np.uint8), statistics)


def test_a_wrapper_pickles_and_wraps():
    images = images_of(np.uint8)
    dataset = DatasetWrapper(Standardize(Batched(images), ChannelStatistics.of_images(images)))

    copy = pickle.loads(pickle.dumps(dataset))

    assert torch.equal(copy.get_batch([1, 4])[0], dataset.get_batch([1, 4])[0])


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", START_METHODS)
def test_workers_change_nothing(method):
    images = torch.from_numpy(images_of(np.uint16))
    dataset = Standardize(Batched(images), ChannelStatistics.of_images(images))
    loader = FastLoader(dataset, 2, num_workers=1, multiprocessing_context=method)

    batches = torch.cat([batch for batch, _ in loader])

    assert torch.equal(batches, standardize(images, dataset.statistics))


def test_a_tensor_dataset_is_read_in_batches():
    images = torch.from_numpy(images_of(np.uint8))
    dataset = Standardize(TensorDataset(images), ChannelStatistics.of(TensorDataset(images)))
    loader = FastLoader(dataset, 4)

    batches = torch.cat([batch for [batch] in loader])

    assert loader.settings.num_workers == 0
    assert torch.equal(batches, standardize(images, dataset.statistics))
