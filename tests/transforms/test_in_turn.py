"""Transforms one after the other: what they write over is theirs, and they do write over it."""

from dataclasses import dataclass

import pytest
import torch

from fastloader.tensors._buffers import allocating_with
from fastloader.transforms import (
    Chain,
    ChannelDrop,
    Cutout,
    Draws,
    GaussianBlur,
    GaussianNoise,
    OneOf,
    RandomCrop,
    RandomFlip,
    RandomGamma,
    RandomQuarterTurn,
    RandomResizedCrop,
    RandomScale,
    RandomShift,
    Sometimes,
    SpecAugment,
    Transform,
)

DRAWS = Draws.of(1, 2, range(5))
KEPT = torch.ones(5, 2, 8, 8)


@dataclass(frozen=True)
class Unchanged(Transform):
    """Hands its images on."""

    def apply(self, images, draws):
        return images


@dataclass(frozen=True)
class FromMemory(Transform):
    """Hands out memory that it keeps."""

    def apply(self, images, draws):
        return KEPT


EACH = [
    RandomFlip(),
    RandomQuarterTurn(),
    RandomCrop(6),
    RandomResizedCrop(6),
    RandomScale(),
    RandomShift(3.0),
    RandomGamma(),
    GaussianNoise(2.0),
    GaussianBlur(),
    ChannelDrop(0.5),
    Cutout(3, fill="mean"),
    SpecAugment(),
    Sometimes(RandomFlip()),
    OneOf(RandomFlip(), RandomScale()),
    Chain(RandomFlip(), RandomScale()),
]


class OwnFlip(RandomFlip):
    """Derived from one of ours, and hands its images on."""

    def move(self, images, draws):
        return images


class OwnScale(RandomScale):
    """Derived from one of ours, and computes otherwise."""

    def compute(self, images, draws):
        return images * 0 + 7


def images(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(5, 2, 8, 8, generator=generator) * 200).to(dtype)


@pytest.mark.parametrize(
    "first",
    [
        Unchanged(),
        OwnFlip(),
        Sometimes(RandomFlip(), 0.0),
        OneOf(Unchanged()),
        Chain(Unchanged()),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "second",
    [RandomScale(2.0), RandomShift(1.0), RandomGamma(2.0), GaussianNoise(1.0), Cutout(4)],
    ids=repr,
)
def test_images_that_a_first_transform_hands_on_are_not_written_to(first, second):
    given = images()

    changed = Chain(first, second).batch(given, DRAWS)

    assert torch.equal(given, images())
    assert not torch.equal(changed, given)


@pytest.mark.parametrize(
    "first", [FromMemory(), OneOf(FromMemory()), Sometimes(FromMemory(), 1.0)]
)
def test_memory_that_a_transform_keeps_is_not_written_to(first):
    Chain(first, RandomScale(2.0), ChannelDrop(1.0)).batch(images(), DRAWS)

    assert bool((KEPT == 1).all())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.uint16, torch.uint8], ids=str
)
def test_in_place_gives_the_same_bits(dtype):
    steps = [RandomCrop(6), RandomScale(), RandomShift(3.0), GaussianNoise(2.0), Cutout(3)]
    chain = Chain(*steps)

    together = chain.batch(images(dtype), DRAWS)

    expected = images(dtype)
    for number, step in enumerate(steps):
        expected = step.batch(expected, DRAWS.stream(number))
    assert torch.equal(together, expected)


def test_what_one_of_ours_has_made_is_written_over_and_lies_where_the_loader_wants_it():
    asked = []

    def allocate(shape, dtype):
        asked.append(torch.empty(tuple(shape), dtype=dtype))
        return asked[-1]

    with allocating_with(allocate):
        changed = Chain(RandomCrop(6), RandomScale(2.0), Cutout(4)).batch(images(), DRAWS)

    assert [each.data_ptr() for each in asked] == [changed.data_ptr()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint16], ids=str)
@pytest.mark.parametrize("transform", EACH, ids=repr)
def test_a_batch_that_may_be_written_to_becomes_the_same(transform, dtype):
    given = images(dtype)

    changed = transform.batch(given, DRAWS.stream(0), in_place=True)

    assert torch.equal(changed, transform.batch(images(dtype), DRAWS.stream(0)))
    assert (changed.data_ptr() == given.data_ptr()) == transform.works_in_place


def test_labels_are_not_written_to_where_images_may_be():
    given = images(torch.int64)

    moved = RandomFlip().batch(given, DRAWS.stream(0), are_labels=True, in_place=True)

    assert torch.equal(given, images(torch.int64))
    assert torch.equal(moved, RandomFlip().batch(images(torch.int64), DRAWS.stream(0)))


@pytest.mark.parametrize("own", [OwnFlip(), OwnScale()], ids=repr)
def test_a_subclass_that_writes_its_method_anew_is_heard_where_images_may_be_written_to(own):
    given = images()

    changed = own.batch(given, DRAWS.stream(0), in_place=True)

    assert torch.equal(given, images())
    assert torch.equal(changed, own.batch(images(), DRAWS.stream(0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8], ids=str)
def test_a_subclass_that_computes_otherwise_is_heard(dtype):
    changed = Chain(RandomFlip(), OwnScale()).batch(images(dtype), DRAWS)

    assert bool((changed == 7).all())


def test_labels_of_a_chain_are_not_written_to():
    labels = images(torch.int64)

    moved = Chain(RandomFlip(), RandomScale(), Cutout(4)).batch(labels, DRAWS, are_labels=True)

    assert torch.equal(labels, images(torch.int64))
    assert torch.equal(moved, RandomFlip().batch(labels, DRAWS.stream(0), are_labels=True))
