import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.errors import SettingsError, ShapeError
from fastloader.transforms import (
    Chain,
    Draws,
    RandomCrop,
    RandomFlip,
    RandomQuarterTurn,
    RandomResizedCrop,
    _orientation,
    _windows,
)
from fastloader.transforms._orientation import Ways

seeds = st.integers(0, 2**64 - 1)
sizes = st.integers(1, 9)


def draws(seed=0, count=1):
    return Draws.of(seed, 0, range(count))


def numbered(height, width, count=1):
    """Images whose pixels are all different."""
    total = count * height * width
    return torch.arange(total, dtype=torch.float32).reshape(count, 1, height, width)


@given(seed=seeds, height=sizes, width=sizes)
def test_the_same_flip_twice_is_no_flip(seed, height, width):
    images = numbered(height, width, 4)

    twice = RandomFlip()(RandomFlip()(images, draws(seed, 4)), draws(seed, 4))

    assert torch.equal(twice, images)


@pytest.mark.parametrize(
    ("flip", "axes"),
    [(RandomFlip(1, 0), (3,)), (RandomFlip(0, 1), (2,)), (RandomFlip(1, 1), (2, 3))],
    ids=["horizontal", "vertical", "both"],
)
def test_a_flip_changes_the_sides_it_names(flip, axes):
    images = numbered(3, 4, 2)

    assert torch.equal(flip(images, draws(0, 2)), images.flip(axes))


def test_half_of_the_images_are_flipped():
    images = numbered(2, 2, 1).expand(2000, 1, 2, 2)

    flipped = RandomFlip()(images, draws(0, 2000))

    corners = flipped[:, 0, 0, 0].int().bincount(minlength=4)
    assert all(400 < count < 600 for count in corners)


@pytest.mark.parametrize("num_turns", range(4))
def test_a_turn_is_that_of_rot90(num_turns):
    images = numbered(4, 4, 2)

    turned = RandomQuarterTurn((num_turns,))(images, draws(0, 2))

    assert torch.equal(turned, torch.rot90(images, num_turns, (2, 3)))


@given(seed=seeds, size=sizes)
def test_four_times_the_same_turn_is_none(seed, size):
    images = numbered(size, size, 3)

    result = images
    for _ in range(4):
        result = RandomQuarterTurn()(result, draws(seed, 3))

    assert torch.equal(result, images)


def test_grouped_moves_for_devices_equal_those_for_the_cpu_in_place_or_not():
    images = numbered(4, 4, 64)
    ways = np.arange(64) % 8
    asked = Ways(ways & 4 > 0, ways & 1 > 0, ways & 2 > 0)
    grouped, in_place = torch.empty_like(images), images.clone()
    one_by_one, alone = torch.empty_like(images), images.clone()

    _orientation._reorient_in_groups(images, asked, grouped)
    _orientation._reorient_in_groups(in_place, asked, in_place)
    _orientation._reorient_one_by_one(images, asked, one_by_one)
    _orientation._reorient_one_by_one(alone, asked, alone)

    assert all(torch.equal(each, one_by_one) for each in (grouped, in_place, alone))


@given(
    tops=st.lists(st.integers(-7, 9), min_size=1, max_size=5),
    size=st.tuples(st.integers(1, 8), st.integers(1, 8)),
)
def test_windows_cut_for_devices_equal_those_for_the_cpu(tops, size):
    images = numbered(5, 6, len(tops)).expand(-1, 3, -1, -1)
    where = np.array(tops), np.array(tops[::-1]), size, torch.tensor(-1.0)

    at_once = _windows._cut_at_once(images, *where)

    assert torch.equal(at_once, _windows.cut_windows(images, *where))


def test_quarter_turns_of_images_that_are_not_square_are_refused():
    with pytest.raises(ShapeError, match=r"3 x 4: crop them .*turns=\(0, 2\)"):
        RandomQuarterTurn()(numbered(3, 4), draws())


@given(
    seed=seeds,
    height=st.integers(3, 12),
    width=st.integers(3, 12),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_a_crop_is_a_window_of_the_image(seed, height, width, size):
    image = numbered(height, width)

    crop = RandomCrop(size)(image, draws(seed))[0, 0]

    top, left = divmod(int(crop[0, 0]), width)
    assert crop.shape == size
    assert torch.equal(crop, image[0, 0, top : top + size[0], left : left + size[1]])


def test_every_window_is_equally_likely():
    images = numbered(4, 5, 1).expand(6000, 1, 4, 5)

    corners = RandomCrop((3, 3))(images, draws(0, 6000))[:, 0, 0, 0].int().bincount()

    counts = corners[corners > 0]
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts)


def test_padding_surrounds_the_image_with_the_fill():
    padded = RandomCrop((4, 5), padding=1, fill=-1)(numbered(2, 3), draws())[0, 0]

    assert torch.equal(padded[1:3, 1:4], numbered(2, 3)[0, 0])
    assert (padded.sum(), (padded == -1).sum()) == (15 - 14, 14)


def test_a_window_that_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="window of 5 x 5 does not fit in images of 4 x 9"):
        RandomCrop(5)(numbered(4, 9), draws())


def test_labels_move_with_the_image():
    chain = Chain(RandomFlip(), RandomQuarterTurn(), RandomCrop(3, padding=1, fill=-1))
    images = numbered(5, 5, 20) + 1

    moved = chain.batch(images, draws(0, 20))
    labels = chain.batch(images, draws(0, 20), are_labels=True)

    assert torch.equal(labels, moved.clamp(min=0))


@pytest.mark.parametrize("size", [(8, 8), (40, 17), (3, 5)], ids=str)
def test_a_resized_crop_is_the_window_resized_by_torch(size):
    images = torch.rand(8, 2, 20, 30, generator=torch.Generator().manual_seed(0))
    transform = RandomResizedCrop(size)

    result = transform(images, draws(0, 8))

    for number, box in enumerate(zip(*transform.windows((20, 30), draws(0, 8)), strict=True)):
        top, left, height, width = (int(value) for value in box)
        window = images[number : number + 1, :, top : top + height, left : left + width]
        expected = torch.nn.functional.interpolate(
            window, size=size, mode="bilinear", antialias=True
        )
        assert torch.allclose(result[number], expected[0], atol=1e-5)


@given(seed=seeds, height=st.integers(1, 50), width=st.integers(1, 50))
def test_a_window_lies_in_the_image_and_keeps_its_bounds(seed, height, width):
    transform = RandomResizedCrop(8, area=(0.2, 0.9))

    top, left, heights, widths = transform.windows((height, width), draws(seed, 20))

    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (heights >= 1).all()
    assert (widths >= 1).all()
    assert (top + heights <= height).all()
    assert (left + widths <= width).all()


def test_areas_of_windows_are_even_between_their_bounds():
    _, _, heights, widths = RandomResizedCrop(8, area=(0.2, 0.6)).windows(
        (400, 400), draws(0, 20_000)
    )

    shares = heights * widths / 400**2
    assert abs(shares.mean() - 0.4) < 0.005
    assert shares.min() > 0.19
    assert shares.max() < 0.61


def test_images_without_pixels_are_not_resized():
    with pytest.raises(ShapeError, match="Images of 0 x 4 pixels"):
        RandomResizedCrop(8)(torch.empty(3, 0, 4))


def test_resized_labels_are_labels_of_the_window():
    labels = torch.randint(0, 5, (6, 1, 20, 20), generator=torch.Generator().manual_seed(0))
    transform = RandomResizedCrop(11)

    resized = transform.batch(labels, draws(0, 6), are_labels=True)

    assert resized.dtype == labels.dtype
    for number, box in enumerate(zip(*transform.windows((20, 20), draws(0, 6)), strict=True)):
        top, left, height, width = (int(value) for value in box)
        window = labels[number : number + 1, :, top : top + height, left : left + width]
        expected = torch.nn.functional.interpolate(
            window.double(), size=11, mode="nearest-exact"
        )
        assert torch.equal(resized[number].double(), expected[0])


def test_a_pixel_that_is_not_a_number_stays_in_its_place():
    images = torch.zeros(1, 1, 16, 16)
    images[0, 0, 0, 0] = torch.inf

    resized = RandomResizedCrop(16, area=(1.0, 1.0), ratio=(1.0, 1.0))(images, draws())

    assert resized.isinf().sum() == 1
    assert not resized.isnan().any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFlip(1.5), "horizontal must be from 0 to 1, but got 1.5"),
        (lambda: RandomQuarterTurn((4,)), "from 0 to 3"),
        (lambda: RandomQuarterTurn(()), "from 0 to 3"),
        (lambda: RandomCrop(0), "size must be a whole number of pixels"),
        (lambda: RandomCrop((3, 3, 3)), "size must be a whole number of pixels"),
        (
            lambda: RandomCrop(3, padding=-1),
            "padding must be a whole number of at least 0, but got -1",
        ),
        (lambda: RandomCrop(3, padding=1.5), "padding must be a whole number"),
        (lambda: RandomCrop(3, fill="mean"), "fill must be a number"),
        (lambda: RandomFlip(None), "horizontal must be from 0 to 1, but got None"),
        (lambda: RandomQuarterTurn(2), "from 0 to 3, but got 2"),
        (lambda: RandomResizedCrop(8, area=0.5), r"area must be a pair \(low, high\)"),
        (lambda: RandomResizedCrop(8, area=(0.0, 1.0)), "area must lie above 0"),
        (lambda: RandomResizedCrop(8, ratio=(2.0, 1.0)), "low <= high"),
    ],
    ids=range(13),
)
def test_a_wrong_argument_is_named(make, message):
    with pytest.raises(SettingsError, match=message):
        make()
