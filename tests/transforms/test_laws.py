"""Laws of every transform: one image and a batch, any dtype, any order, pickling."""

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastloader.transforms as package
from fastloader.errors import ShapeError
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

FIXED = RandomGamma(2.0, value_range=(0.0, 100.0))
TRANSFORMS = [
    RandomFlip(),
    RandomQuarterTurn(turns=(0, 2)),
    RandomCrop(5),
    RandomCrop((9, 5), padding=2, fill=3),
    RandomResizedCrop((6, 9)),
    RandomResizedCrop(3, area=(0.5, 1.0)),
    RandomScale((0.5, 2.0)),
    RandomScale((0.5, 2.0), per_channel=True, clamp=(0.0, 50.0)),
    RandomShift((-5.0, 5.0), per_channel=True),
    RandomGamma((0.3, 3.0)),
    FIXED,
    GaussianNoise((0.0, 5.0)),
    GaussianBlur((0.0, 2.0)),
    ChannelDrop(0.5, fill="mean"),
    Cutout(4, num_holes=2, fill=7),
    Cutout((3, 5), fill="mean"),
    SpecAugment(max_frequency_bins=4, max_time_steps=20, num_time_masks=2),
    SpecAugment.from_policy("SS", fill="mean"),
    Sometimes(RandomShift(3.0)),
    OneOf(RandomScale(2.0), RandomShift(1.0), RandomFlip(), weights=(1, 2, 1)),
    Chain(RandomFlip(), GaussianNoise(1.0), RandomCrop(5)),
]
DTYPES = [
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip

each_transform = pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)


def images(count=6, channels=2, height=8, width=11, dtype=torch.float32):
    values = torch.arange(count * channels * height * width) * 7919 % 101
    return values.reshape(count, channels, height, width).to(dtype)


def is_same(first, second):
    """Bit for bit, for any dtype."""
    same_kind = first.dtype == second.dtype and first.shape == second.shape
    return same_kind and torch.equal(
        first.contiguous().view(torch.uint8), second.contiguous().view(torch.uint8)
    )


@each_transform
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 100),
    indices=st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    channels=st.integers(1, 3),
)
def test_a_batch_is_its_images_in_any_order_and_choice(
    transform, seed, epoch, indices, channels
):
    batch = images(len(indices), channels)

    together = transform(batch, Draws.of(seed, epoch, indices))

    alone = [transform(batch[n], Draws.of(seed, epoch, [i])) for n, i in enumerate(indices)]
    assert is_same(together, torch.stack(alone))


@each_transform
def test_a_large_batch_is_its_images(transform):
    batch = images(70, 3, 64, 64)

    together = transform(batch, Draws.of(1, 0, range(70)))

    alone = [transform(image, Draws.of(1, 0, [n])) for n, image in enumerate(batch)]
    assert is_same(together, torch.stack(alone))


@each_transform
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_batch_with_holes_is_its_images(transform):
    generator = torch.Generator().manual_seed(0)
    batch = torch.rand((24, 2, 40, 40), generator=generator)
    chances = torch.rand(batch.shape, generator=generator)
    batch[chances < 0.02], batch[chances > 0.99] = torch.nan, torch.inf

    together = transform(batch, Draws.of(1, 0, range(24)))

    alone = [transform(image, Draws.of(1, 0, [n])) for n, image in enumerate(batch)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=0, equal_nan=True)


@each_transform
def test_a_large_batch_of_whole_numbers_is_its_images(transform):
    batch = images(70, 3, 64, 64, torch.uint16)

    together = transform(batch, Draws.of(1, 0, range(70)))

    alone = [transform(image, Draws.of(1, 0, [n])) for n, image in enumerate(batch)]
    assert is_same(together, torch.stack(alone))


@each_transform
@pytest.mark.parametrize("dtype", [torch.uint16, torch.float32], ids=str)
def test_a_batch_of_no_images_keeps_its_type(transform, dtype):
    changed = transform(images(0, dtype=dtype), Draws.of(1, 0, []))

    assert changed.dtype == dtype
    assert changed.shape[:2] == (0, 2)


@each_transform
def test_threads_do_not_change_the_result(transform):
    batch = images(5, 3, 101, 103)
    num_threads = torch.get_num_threads()
    with_all = transform(batch, Draws.of(1, 0, range(5)))

    torch.set_num_threads(1)
    with_one = transform(batch, Draws.of(1, 0, range(5)))
    torch.set_num_threads(num_threads)

    assert is_same(with_one, with_all)


@each_transform
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_dtype_is_kept(transform, dtype):
    batch = images(dtype=dtype)

    changed = transform(batch, Draws.of(1, 0, range(6)))

    assert changed.dtype == dtype


@each_transform
def test_the_given_images_are_not_written_to(transform):
    batch = images()

    transform(batch, Draws.of(1, 0, range(6)))

    assert is_same(batch, images())


@pytest.mark.parametrize("transform", [t for t in TRANSFORMS if t != FIXED], ids=repr)
def test_another_epoch_gives_another_result(transform):
    batch = images(20)

    first, second = (transform(batch, Draws.of(1, e, range(20))) for e in (0, 1))

    assert not is_same(first, second)


@each_transform
def test_a_transform_survives_pickling_and_compares_by_value(transform):
    twin = pickle.loads(pickle.dumps(transform))

    assert twin == transform
    assert hash(twin) == hash(transform)
    assert is_same(
        twin(images(), Draws.of(1, 0, range(6))), transform(images(), Draws.of(1, 0, range(6)))
    )


@each_transform
def test_a_transform_is_read_back_from_its_repr(transform):
    names = {name: getattr(package, name) for name in package.__all__}

    assert eval(repr(transform), names) == transform


@each_transform
def test_a_transform_cannot_be_changed(transform):
    assert is_dataclass(transform)
    with pytest.raises(FrozenInstanceError):
        setattr(transform, fields(transform)[0].name, None)


@each_transform
def test_an_array_stays_an_array(transform):
    array = images()[0].numpy()
    array.flags.writeable = False

    changed = transform(array, Draws.of(1, 0, [3]))

    assert isinstance(changed, np.ndarray)
    assert is_same(torch.from_numpy(changed), transform(images()[0], Draws.of(1, 0, [3])))


@each_transform
def test_axes_before_height_and_width_count_as_channels(transform):
    volumes = images(6, 4).reshape(6, 2, 2, 8, 11)

    changed = transform.batch(volumes, Draws.of(1, 0, range(6)))

    flat = transform.batch(volumes.flatten(1, 2), Draws.of(1, 0, range(6)))
    assert is_same(changed.flatten(1, 2), flat)


@each_transform
def test_an_image_without_channels_has_one(transform):
    image = images()[0, 0]

    changed = transform(image, Draws.of(1, 0, [3]))

    assert is_same(changed, transform(image[None], Draws.of(1, 0, [3]))[0])


@each_transform
def test_memory_in_any_order_gives_the_same(transform):
    plain = images()
    for order in (
        plain.contiguous(memory_format=torch.channels_last),
        plain.transpose(2, 3).contiguous().transpose(2, 3),
        plain.repeat_interleave(2, 3)[..., ::2],
    ):
        changed = transform(order, Draws.of(1, 0, range(6)))

        assert is_same(changed, transform(plain, Draws.of(1, 0, range(6))))


@each_transform
def test_without_draws_torchs_generator_decides(transform):
    torch.manual_seed(4)
    first = transform(images())
    torch.manual_seed(4)

    assert is_same(transform(images()), first)


def test_as_many_draws_as_images_are_needed():
    with pytest.raises(ShapeError, match=r"batch of 2 images, shape \(2, ..., H, W\), but got"):
        RandomFlip()(images(3), Draws.of(1, 0, [1, 2]))


@pytest.mark.parametrize("image", [[[1.0]], "cell.tif", None], ids=repr)
def test_what_is_no_image_is_refused(image):
    with pytest.raises(ShapeError, match=r"tensor or array .*, but got .*: convert it"):
        RandomFlip()(image)


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=str)
def test_values_that_are_no_numbers_to_compute_with_are_refused(dtype):
    with pytest.raises(ShapeError, match="whole or real numbers"):
        RandomScale()(torch.zeros(1, 4, 4, dtype=dtype))


@each_transform
@pytest.mark.parametrize("dtype", [torch.uint16, torch.float32], ids=str)
def test_images_without_channels_stay_so(transform, dtype):
    changed = transform(torch.zeros(2, 0, 32, 33, dtype=dtype), Draws.of(1, 0, [0, 1]))

    assert changed.shape[:2] == (2, 0)
    assert changed.dtype == dtype


def test_a_signal_without_height_is_refused():
    with pytest.raises(ShapeError, match="H, W"):
        RandomFlip()(torch.zeros(5), Draws.of(1, 0, [1]))


def test_a_transform_of_ones_own_takes_five_lines():
    class Negative(Transform):
        def apply(self, images, draws):
            chosen = package.per_image(draws.chance(0.5), images)
            return torch.where(chosen, -images, images)

    batch = images(50) + 1

    changed = Negative()(batch, Draws.of(1, 0, range(50)))

    signs = (changed / batch).flatten(1)
    assert ((signs == 1).all(1) | (signs == -1).all(1)).all()
    assert 10 < (signs[:, 0] == 1).sum() < 40


@pytest.mark.parametrize("base", ["Transform", "GeometricTransform", "IntensityTransform"])
def test_a_base_class_says_what_is_missing(base):
    with pytest.raises(NotImplementedError, match="must define"):
        getattr(package, base)()(images())
