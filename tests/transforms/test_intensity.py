import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.errors import SettingsError
from fastloader.transforms import (
    Draws,
    GaussianBlur,
    GaussianNoise,
    RandomGamma,
    RandomScale,
    RandomShift,
)
from fastloader.transforms._blur import _blur_on_cpu, _blur_on_device


def draws(count=1, seed=0):
    return Draws.of(seed, 0, range(count))


def standardized(count=8, channels=2):
    return torch.randn(count, channels, 9, 10, generator=torch.Generator().manual_seed(0))


def test_scaling_multiplies_each_image_by_one_factor():
    images = standardized()

    factors = (RandomScale((0.5, 2.0))(images, draws(8)) / images).flatten(1)

    assert torch.allclose(factors, factors[:, :1].expand_as(factors))
    assert len(factors[:, 0].unique()) == 8
    assert 0.5 <= factors.min() <= factors.max() <= 2.0


def test_shifting_per_channel_adds_one_offset_to_each():
    images = standardized()

    offsets = (RandomShift((-1, 1), per_channel=True)(images, draws(8)) - images).flatten(2)

    assert torch.allclose(offsets, offsets[:, :, :1].expand_as(offsets), atol=1e-5)
    assert len(offsets[:, :, 0].unique()) == 16


@pytest.mark.parametrize(
    "transform",
    [
        RandomScale(3.0),
        RandomShift(5.0),
        RandomGamma(0.5, value_range=(0, 1)),
        GaussianNoise(9.0),
    ],
    ids=repr,
)
def test_nothing_is_clamped_unless_asked(transform):
    images = standardized() * 10

    changed = transform(images, draws(8))

    assert changed.min() < 0
    assert changed.max() > 1
    assert len(changed.unique()) > 0.9 * len(images.unique())


@pytest.mark.parametrize("make", [RandomScale, RandomShift, RandomGamma, GaussianNoise])
def test_a_given_range_is_the_range_of_the_result(make):
    changed = make(clamp=(-0.5, 0.25))(standardized(), draws(8))

    assert changed.min() == -0.5
    assert changed.max() == 0.25


@given(gamma=st.floats(0.1, 5.0), scale=st.floats(0.1, 1e4), offset=st.floats(-1e3, 1e3))
def test_gamma_keeps_the_order_and_the_ends_of_the_image(gamma, scale, offset):
    image = (torch.linspace(0, 1, 50).reshape(1, 5, 10) * scale + offset).double()

    changed = RandomGamma(gamma)(image, draws())

    assert torch.isclose(changed.min(), image.min())
    assert torch.isclose(changed.max(), image.max())
    assert (changed.flatten().diff() >= 0).all()


def test_gamma_of_a_constant_image_changes_nothing():
    image = torch.full((1, 4, 4), 7.0)

    assert torch.equal(RandomGamma(2.0)(image, draws()), image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gamma_is_the_power_of_the_share_of_the_range(dtype):
    images = torch.rand(8, 3, 9, 11, dtype=dtype) * 50 - 20
    exponents = torch.linspace(0.2, 4.0, 8, dtype=dtype).reshape(-1, 1, 1, 1)

    changed = [
        RandomGamma(exponent.item())(image, draws())
        for image, exponent in zip(images, exponents, strict=True)
    ]

    low, high = images.amin((1, 2, 3), True), images.amax((1, 2, 3), True)
    expected = low + ((images - low) / (high - low)) ** exponents * (high - low)
    torch.testing.assert_close(torch.stack(changed), expected)


def test_gamma_zero_makes_the_whole_image_as_bright_as_its_greatest_value():
    image = torch.tensor([[[1.0, 2.0, 5.0]]])

    assert RandomGamma(0.0)(image, draws()).flatten().tolist() == [5.0, 5.0, 5.0]


def test_gamma_beyond_the_range_is_its_mirror_image():
    image = torch.tensor([[[-2.0, -0.5, 0.5, 2.0]]])

    changed = RandomGamma(2.0, value_range=(0, 1))(image, draws())

    assert changed.flatten().tolist() == [-4.0, -0.25, 0.25, 4.0]


def test_noise_has_the_standard_deviation_asked_for():
    images = torch.zeros(2, 1, 500, 500)

    noise = GaussianNoise(0.3)(images, draws(2))

    assert abs(noise.std() - 0.3) < 0.003
    assert abs(np.corrcoef(noise.flatten(1))[0, 1]) < 0.01


def test_noise_of_one_image_is_not_correlated_with_its_neighbours():
    noise = GaussianNoise(1.0)(torch.zeros(1, 1, 500, 500), draws())[0, 0]

    for a, b in (
        (noise[1:], noise[:-1]),
        (noise[:, 1:], noise[:, :-1]),
        (noise[:, 4:], noise[:, :-4]),
    ):
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.01


def test_blur_is_a_gaussian():
    image = torch.zeros(1, 41, 41, dtype=torch.float64)
    image[0, 20, 20] = 1.0

    blurred = GaussianBlur(2.0)(image, draws())[0]

    profile = torch.exp(-0.5 * (torch.arange(-8, 9) / 2.0) ** 2).double()
    expected = torch.outer(profile, profile) / profile.sum() ** 2
    assert torch.allclose(blurred[12:29, 12:29], expected)
    assert torch.isclose(blurred.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_blur_leaves_a_constant_image_as_it_is_up_to_its_edge():
    image = torch.full((1, 7, 5), 3.0)

    assert torch.allclose(GaussianBlur(4.0)(image, draws()), image)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.6])
def test_blur_sums_pixels_by_weight_and_repeats_those_at_the_edge(sigma):
    image = torch.rand(2, 6, 9, dtype=torch.float64)
    radius = int(4 * sigma + 0.5)
    distance = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (distance.double() / sigma) ** 2)
    weights /= weights.sum()

    blurred = GaussianBlur(sigma)(image[None], draws())[0]

    rows = (torch.arange(6)[:, None] + distance).clamp(0, 5)
    columns = (torch.arange(9)[:, None] + distance).clamp(0, 8)
    expected = torch.einsum("crkw,k->crw", image[:, rows], weights)
    expected = torch.einsum("chwk,k->chw", expected[:, :, columns], weights)
    assert torch.allclose(blurred, expected)


def test_a_blur_spreads_what_is_not_a_number_no_farther_than_it_reaches():
    image = torch.zeros(1, 1, 40, 41)
    image[0, 0, 20, 20] = torch.nan

    blurred = GaussianBlur(1.0)(image, draws())

    assert blurred.isnan().sum() == 9**2  # four pixels to each side


def test_a_blur_of_a_large_image_is_that_of_its_parts():
    image = torch.rand(1, 300, 200)  # more than is summed at once

    blurred = GaussianBlur(1.0)(image, draws())

    part = GaussianBlur(1.0)(image[:, 50:150], draws())
    assert torch.equal(blurred[:, 60:140], part[:, 10:90])


@pytest.mark.parametrize("radius", [0, 1, 6])
def test_a_blur_is_the_same_by_the_operations_of_a_device(radius):
    images, chosen = torch.randn(5, 3, 33, 40), np.array([1, 3, 4])
    weights = torch.rand(3, 2 * radius + 1) if radius else torch.ones(3, 1)
    on_cpu, on_device = torch.zeros_like(images), torch.zeros_like(images)

    _blur_on_cpu(images, chosen, weights, on_cpu)
    _blur_on_device(images, chosen, weights, on_device)

    assert torch.allclose(on_cpu, on_device, rtol=1e-6, atol=1e-6)


def test_no_blur_is_no_change():
    image = standardized()

    assert torch.equal(GaussianBlur(0.0)(image, draws(8)), image)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.int16, torch.int32], ids=str
)
def test_integers_are_rounded_and_end_at_the_bounds_of_their_type(dtype):
    bounds = torch.iinfo(dtype)
    images = torch.tensor([0, 10, 11, bounds.max], dtype=dtype).reshape(1, 1, 2, 2)

    scaled = RandomScale(1.25)(images, draws()).flatten().tolist()

    assert scaled == [0, 12, 14, bounds.max]  # 12.5 to even, 13.75 up


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomScale((2.0, 1.0)), "factor must be a finite number .* low <= high"),
        (lambda: RandomShift("a"), "offset must be a number or a pair"),
        (lambda: RandomShift((1, 2, 3)), "offset must be a number or a pair"),
        (lambda: RandomShift(float("nan")), "offset must be a finite number"),
        (lambda: RandomGamma(-1.0), "gamma must be .* of at least 0"),
        (lambda: GaussianNoise((-0.1, 0.1)), "std must be .* of at least 0"),
        (lambda: GaussianBlur(-1), "sigma must be .* of at least 0"),
        (lambda: RandomScale(clamp=(1, 0)), "clamp must be"),
        (lambda: GaussianNoise(clamp=1.0), "clamp must be a pair"),
    ],
    ids=range(9),
)
def test_a_wrong_argument_is_named(make, message):
    with pytest.raises(SettingsError, match=message):
        make()
