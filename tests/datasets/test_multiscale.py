"""Several scales of one image: made from the batch, one at a time, from one draw."""

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from fastloader import FastLoader
from fastloader.datasets import Augment, ChannelStatistics, MultiScale, standardize
from fastloader.errors import SettingsError, ShapeError
from fastloader.transforms import RandomFlip


class Cells:
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": index % 2}

    def get_batch(self, indices):
        labels = torch.tensor([index % 2 for index in indices])
        return {"image": self.images[list(indices)], "label": labels}


def cells(num_images=6, size=(16, 12)):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (num_images, 3, *size), generator=generator)
    return Cells(images.to(torch.uint8))


def test_batches_keep_the_dtype_of_the_base():
    dataset = MultiScale(cells(), [1.0, 0.5])

    [batch] = FastLoader(dataset, 6)

    assert batch["image"].dtype == torch.uint8
    assert torch.equal(batch["image"], cells().images)


def test_each_scale_has_its_size_and_all_other_fields():
    dataset = MultiScale(cells(), [1.0, 0.5, 2.0, (4, 5)])
    batch = dataset.get_batch([0, 1])

    scaled = list(dataset.scales_of(batch))

    sizes = [tuple(one["image"].shape[2:]) for one in scaled]
    assert sizes == [(16, 12), (8, 6), (32, 24), (4, 5)]
    assert all(one["image"].dtype == torch.float32 for one in scaled)
    assert all(one["label"] is batch["label"] for one in scaled)


def test_a_scale_keeps_the_mean():
    batch = MultiScale(cells(), [0.5]).get_batch([0, 1])

    [scaled] = MultiScale(cells(), [0.5]).scales_of(batch)

    expected = batch["image"].float().mean((2, 3))
    torch.testing.assert_close(scaled["image"].mean((2, 3)), expected, rtol=0.1, atol=0)


def test_half_of_a_volume_is_the_mean_of_its_blocks():
    volume = torch.rand(2, 1, 4, 4, 4)

    [scaled] = MultiScale(list(volume), [0.5]).scales_of(volume)

    expected = torch.nn.functional.avg_pool3d(volume, 2)
    torch.testing.assert_close(scaled, expected)


def test_scales_are_standardized_after_they_were_made():
    statistics = ChannelStatistics.of(cells())
    dataset = MultiScale(cells(), [1.0, 0.5], statistics=statistics)
    batch = dataset.get_batch(range(6))

    first, _ = dataset.scales_of(batch)

    assert torch.equal(first["image"], standardize(batch["image"], statistics))


def test_labels_take_the_nearest_label():
    image, label = torch.rand(1, 1, 4, 4), torch.arange(16).reshape(1, 4, 4)
    dataset = MultiScale([(image[0], label[0])], [0.5, 2.0], labels=1)

    half, double = (labels for _, labels in dataset.scales_of((image, label)))

    assert half.tolist() == [[[5, 7], [13, 15]]]
    assert torch.equal(double[:, ::2, ::2], label)
    assert torch.equal(double[:, 1::2, 1::2], label)


def test_all_scales_show_the_same_random_changes():
    images = torch.zeros(8, 1, 8, 8)
    images[..., :4] = 1
    augmented = Augment(list(images), RandomFlip(vertical=0), seed=1)
    dataset = MultiScale(augmented, [1.0, 0.5, 0.25])

    [batch] = FastLoader(dataset, 8)

    sides = [(one[..., 0] > 0.5).all(-1).flatten() for one in dataset.scales_of(batch)]
    assert torch.equal(sides[0], sides[1])
    assert torch.equal(sides[0], sides[2])


def test_a_scale_is_freed_before_the_next_is_made():
    dataset = MultiScale(cells(), [0.5, 0.25])
    scales = dataset.scales_of(dataset.get_batch([0]))

    first = weakref.ref(next(scales)["image"])
    next(scales)

    assert first() is None


def test_one_backward_per_scale_gives_the_gradients_of_all_at_once():
    dataset = MultiScale(cells(), [1.0, 0.5, 0.25], statistics=ChannelStatistics.of(cells()))
    batch = dataset.get_batch(range(6))
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 2),
    )

    def loss_of(one):
        loss = torch.nn.functional.cross_entropy(model(one["image"]), one["label"])
        return loss / len(dataset.scales)

    def gradients():
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    sum(loss_of(one) for one in list(dataset.scales_of(batch))).backward()
    at_once = gradients()
    model.zero_grad()
    for one in dataset.scales_of(batch):
        loss_of(one).backward()

    torch.testing.assert_close(gradients(), at_once)


def test_samples_collate_to_the_batch():
    dataset = MultiScale(cells(), [0.5])

    batch = dataset.get_batch([3, 1])

    expected = default_collate([dataset[3], dataset[1]])
    assert torch.equal(batch["image"], expected["image"])
    assert torch.equal(batch["label"], expected["label"])


SIDES = st.integers(1, 12)


@given(
    sides=st.tuples(SIDES, SIDES),
    scale=st.one_of(st.floats(0.1, 3.0), st.tuples(SIDES, SIDES)),
    indices=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_a_scale_of_a_batch_is_that_of_each_image(sides, scale, indices):
    dataset = MultiScale(cells(5, sides), [scale])

    [together] = dataset.scales_of(dataset.get_batch(indices))

    alone = [next(dataset.scales_of(dataset.get_batch([i])))["image"][0] for i in indices]
    torch.testing.assert_close(together["image"], torch.stack(alone))


@given(size=st.tuples(SIDES, SIDES), to=st.tuples(SIDES, SIDES))
def test_a_scaled_image_stays_between_its_least_and_greatest_value(size, to):
    batch = cells(3, size).images

    [scaled] = MultiScale(cells(3, size), [to]).scales_of({"image": batch, "label": 0})

    low, high = batch.amin((2, 3)).float() - 1e-3, batch.amax((2, 3)).float() + 1e-3
    assert bool((scaled["image"].amin((2, 3)) >= low).all())
    assert bool((scaled["image"].amax((2, 3)) <= high).all())


@pytest.mark.parametrize(
    "scales",
    [[], [0.0], [-1.0], [(0, 4)], [float("nan")], [float("inf")], [(4.5, 4)], ["a"], 0.5, None],
)
def test_a_scale_must_be_a_size(scales):
    with pytest.raises(SettingsError, match="scales must be"):
        MultiScale(cells(), scales)


def test_what_are_no_statistics_is_an_error():
    with pytest.raises(SettingsError, match="statistics must be ChannelStatistics, but got 3"):
        MultiScale(cells(), [1.0], statistics=3)


def test_images_without_an_axis_of_channels_are_an_error():
    dataset = MultiScale(list(np.zeros((2, 4, 4), np.uint8)), [0.5])

    with pytest.raises(ShapeError, match=r"\(N, C, H, W\)"):
        next(dataset.scales_of(torch.zeros(2, 4, 4)))
