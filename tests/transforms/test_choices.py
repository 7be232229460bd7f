import pytest
import torch

from fastloader.errors import SettingsError, ShapeError
from fastloader.transforms import (
    Chain,
    Draws,
    OneOf,
    RandomCrop,
    RandomFlip,
    RandomShift,
    Sometimes,
)


def draws(count):
    return Draws.of(0, 0, range(count))


ZEROS = torch.zeros(3000, 1, 1, 1)


@pytest.mark.parametrize("probability", [0.0, 0.2, 1.0])
def test_sometimes_changes_as_many_as_it_should(probability):
    changed = Sometimes(RandomShift(1.0), probability)(ZEROS, draws(3000))

    assert abs(changed.mean() - probability) < 0.03
    assert changed.mean() == probability or 0 < probability < 1


def test_one_of_chooses_by_weight():
    one = OneOf(RandomShift(1.0), RandomShift(2.0), RandomShift(3.0), weights=(1, 0, 3))

    counts = one(ZEROS, draws(3000)).flatten().int().bincount(minlength=4).tolist()

    assert (counts[0], counts[2]) == (0, 0)
    assert abs(counts[1] - 750) < 90


def test_a_chain_applies_in_order_with_numbers_of_their_own():
    shift = RandomShift((-1.0, 1.0))

    twice = Chain(shift, shift)(ZEROS, draws(3000)).flatten()

    once = Chain(shift)(ZEROS, draws(3000)).flatten()
    assert abs(torch.corrcoef(torch.stack([once, twice - once]))[0, 1]) < 0.06


def test_choices_made_for_images_hold_for_labels():
    choice = OneOf(Sometimes(RandomFlip()), Chain(RandomFlip(), RandomFlip()))
    images = torch.rand(100, 1, 4, 4)

    moved = choice.batch(images, draws(100))

    assert torch.equal(choice.batch(images, draws(100), are_labels=True), moved)
    assert not torch.equal(moved, images)


def test_choices_that_differ_in_shape_are_refused():
    with pytest.raises(ShapeError, match="different shapes"):
        Sometimes(RandomCrop(2))(torch.zeros(50, 1, 4, 4), draws(50))


@pytest.mark.parametrize("weights", [(1,), (-1, 2), (0, 0)], ids=str)
def test_wrong_weights_are_named(weights):
    with pytest.raises(SettingsError, match="weights must hold 2 numbers"):
        OneOf(RandomFlip(), RandomFlip(), weights=weights)


def test_a_choice_of_nothing_is_refused():
    with pytest.raises(SettingsError, match="at least one"):
        OneOf()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Chain(RandomFlip(), abs),
        lambda: Chain([RandomFlip()]),
        lambda: OneOf(RandomFlip),
        lambda: Sometimes(abs),
    ],
    ids=["a function", "a list", "a class", "sometimes"],
)
def test_parts_must_be_transforms(make):
    with pytest.raises(SettingsError, match=r"takes transforms of fastloader\.transforms"):
        make()
