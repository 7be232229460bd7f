"""Datasets of other libraries under FastLoader."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from fastloader import FastLoader
from tests.equality import assert_same

# Hugging Face datasets


@pytest.fixture
def hugging_face():
    datasets = pytest.importorskip("datasets")
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    return datasets.Dataset.from_dict({"x": values, "label": list(range(20))})


@pytest.mark.parametrize("style", ["torch", "numpy"])
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.multiprocess)])
def test_hugging_face_batches_are_those_of_torch(hugging_face, style, num_workers):
    dataset = hugging_face.with_format(style)

    loader = FastLoader(dataset, 8, num_workers=num_workers, persistent_workers=False)

    for batch, expected in zip(loader, DataLoader(dataset, 8), strict=True):
        assert_same(batch, expected)


def test_hugging_face_datasets_are_read_in_whole_batches(hugging_face, monkeypatch):
    reads = Counter()
    kind = type(hugging_face)
    single, many = kind.__getitem__, kind.__getitems__

    def read_one(self, key):
        reads[type(key).__name__] += 1
        return single(self, key)

    def read_many(self, keys):
        reads["whole"] += 1
        return many(self, keys)

    monkeypatch.setattr(kind, "__getitem__", read_one)
    monkeypatch.setattr(kind, "__getitems__", read_many)

    list(FastLoader(hugging_face.with_format("torch"), 8, num_workers=0))

    assert reads["whole"] == 3
    assert reads["int"] == 0


# MONAI


def by_workers(dataset, counts):
    """Return the batches of one seeded epoch, made by different numbers of workers."""
    for num_workers in counts:
        loader = FastLoader(
            dataset,
            4,
            shuffle=True,
            seed=3,
            num_workers=num_workers,
            persistent_workers=False,
        )
        yield [[part.clone() for part in parts_of(batch)] for batch in loader]


def parts_of(batch):
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", ["Dataset", "CacheDataset"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_monai_draws_do_not_depend_on_the_number_of_workers(kind):
    data = pytest.importorskip("monai.data")
    from monai.transforms import Compose, EnsureTyped, RandFlipd, RandGaussianNoised

    items = [{"image": np.full((1, 4, 4), i, np.float32), "label": i} for i in range(12)]
    transform = Compose([
        EnsureTyped("image", track_meta=False),
        RandFlipd("image", prob=0.5, spatial_axis=0),
        RandGaussianNoised("image", prob=1.0),
    ])
    options = {"progress": False} if kind == "CacheDataset" else {}
    dataset = getattr(data, kind)(items, transform, **options)

    alone, both = by_workers(dataset, (1, 2))

    assert_same(both, alone)
    images = torch.cat([batch[0] for batch in alone])
    labels = torch.cat([batch[1] for batch in alone])
    noise = images - labels[:, None, None, None]
    # No two samples have the same, beyond what rounding does to it.
    assert torch.pdist(noise.flatten(1)).min() > 1e-4


# torchvision


@pytest.fixture
def image_folder(tmp_path):
    random = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(6):
            pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    return tmp_path


@pytest.mark.multiprocess
def test_torchvision_draws_do_not_depend_on_workers(image_folder):
    torchvision = pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    transform = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), v2.ColorJitter(0.5)])
    dataset = torchvision.datasets.ImageFolder(image_folder, transform)

    alone, *others = by_workers(dataset, (0, 1, 2))

    assert sum(len(labels) for _, labels in alone) == 12
    for batches in others:
        assert_same(batches, alone)


def test_torchvision_batches_are_those_of_torch():
    torchvision = pytest.importorskip("torchvision")
    dataset = torchvision.datasets.FakeData(
        20, (3, 8, 8), transform=torchvision.transforms.ToTensor()
    )

    loader = FastLoader(dataset, 8, num_workers=0)

    for batch, expected in zip(loader, DataLoader(dataset, 8), strict=True):
        assert_same(batch, expected)
