"""Transforms of other libraries, where they are installed: keyed by sample like our own."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fastloader import FastLoader
from fastloader.datasets import AlbumentationsTransform, Augment, ChannelStatistics, Standardize
from tests.equality import assert_same

NUM_SAMPLES = 8


def torchvision_pipeline():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    steps = [v2.RandomHorizontalFlip(), v2.RandomResizedCrop(12), v2.GaussianNoise(sigma=0.5)]
    return {"transforms": v2.Compose(steps), "global_rng": True}


def albumentations_pipeline():
    albumentations = pytest.importorskip("albumentations")
    steps = [albumentations.HorizontalFlip(p=0.5), albumentations.RandomCrop(12, 12)]
    return {"transforms": AlbumentationsTransform(albumentations.Compose(steps))}


def monai_pipeline():
    monai = pytest.importorskip("monai.transforms")
    steps = [monai.RandFlip(0.5, spatial_axis=1), monai.RandGaussianNoise(1.0)]
    return {"transforms": monai.Compose(steps)}


each_library = pytest.mark.parametrize(
    "pipeline",
    [torchvision_pipeline, albumentations_pipeline, monai_pipeline],
    ids=["torchvision", "albumentations", "MONAI"],
)


class Images(Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return torch.linspace(0, 1, 3 * 16 * 16).reshape(3, 16, 16) + index


class BatchedImages(Images):
    def get_batch(self, indices):
        return torch.stack([self[index] for index in indices])


def standardized(base):
    return Standardize(base, ChannelStatistics.of(base, progress=False))


def read(dataset, **options):
    """Return the samples of two epochs."""
    loader = FastLoader(dataset, batch_size=4, seed=5, **options)
    return [torch.cat([batch.clone() for batch in loader]) for _ in range(2)]


@each_library
@pytest.mark.filterwarnings("ignore")  # of the other libraries
def test_a_sample_is_the_same_each_time_and_another_in_each_epoch(pipeline):
    dataset = Augment(standardized(Images()), seed=1, **pipeline())
    first = [torch.as_tensor(np.asarray(dataset[index])) for index in range(NUM_SAMPLES)]
    again = [torch.as_tensor(np.asarray(dataset[index])) for index in range(NUM_SAMPLES)]

    dataset.set_epoch(1)
    later = [torch.as_tensor(np.asarray(dataset[index])) for index in range(NUM_SAMPLES)]

    assert_same(first, again)
    assert not torch.equal(torch.stack(first), torch.stack(later))


@each_library
@pytest.mark.filterwarnings("ignore")
def test_a_batched_base_gives_what_samples_give(pipeline):
    options = pipeline()

    assert_same(
        read(Augment(standardized(Images()), **options), num_workers=0),
        read(Augment(standardized(BatchedImages()), **options)),
    )


@each_library
@pytest.mark.filterwarnings("ignore")
def test_global_generators_are_left_as_they_were(pipeline):
    dataset = Augment(Images(), **pipeline())
    torch_state = torch.get_rng_state()

    dataset[0]

    assert torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.multiprocess
@each_library
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_workers_change_nothing(pipeline, num_workers):
    dataset = Augment(standardized(Images()), **pipeline())

    assert_same(read(dataset, num_workers=0), read(dataset, num_workers=num_workers))
