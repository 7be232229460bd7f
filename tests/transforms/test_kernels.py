"""The kernels in C: the bits that NumPy gives, and an error for whatever they cannot work on."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloader.transforms import (
    Draws,
    GaussianBlur,
    GaussianNoise,
    RandomCrop,
    RandomFlip,
    RandomGamma,
    RandomQuarterTurn,
    _compiled,
)

kernels = _compiled.kernels()
pytestmark = pytest.mark.skipif(kernels is None, reason="the kernels were not built")

MOVING = [
    RandomFlip(),
    RandomQuarterTurn((0, 2)),
    RandomQuarterTurn(),
    RandomCrop(1),
    RandomCrop((2, 1), padding=3, fill=7),
    RandomCrop(5, padding=9, fill=-1.5),
]
COMPUTING = [
    GaussianNoise((0.0, 30.0)),
    GaussianNoise((0.0, 1e30)),
    GaussianNoise((0.0, 5.0), clamp=(-2.0, 3.5)),
    GaussianBlur(),
    GaussianBlur((0.0, 9.0)),
    RandomGamma((0.0, 4.0)),
    RandomGamma(0.0),
    RandomGamma((0.2, 3.0), value_range=(-10.0, 90.5), clamp=(-5.0, 60.0)),
    RandomGamma((0.0, 2.0), value_range=(7.0, 7.0)),
]
WIDE = [GaussianBlur(63.0), GaussianBlur((0.0, 100.0))]
COMPUTED = [
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float32, torch.float64,
]  # fmt: skip
MOVED = [
    *COMPUTED,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-40, 3e38, -3e38]


def images_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return pixels of all kinds: all bits for integers, special values among floats."""
    generator = np.random.default_rng(seed)
    if dtype is torch.bool:
        return torch.from_numpy(generator.random(shape) < 0.5)
    if dtype.is_floating_point or dtype.is_complex:
        values = generator.normal(0, 100, shape)
        is_special = generator.random(shape) < generator.choice([0.0, 0.1])
        values[is_special] = generator.choice(SPECIAL, np.count_nonzero(is_special))
        return torch.from_numpy(values).to(dtype)
    size = np.dtype(str(dtype).removeprefix("torch."))
    pixels = generator.integers(0, 256, (*shape, size.itemsize), np.uint8).view(size)[..., 0]
    extremes = np.iinfo(size)
    is_extreme = generator.random(shape) < 0.1
    ends = np.array([extremes.min, extremes.max], size)
    pixels[is_extreme] = generator.choice(ends, np.count_nonzero(is_extreme))
    return torch.from_numpy(pixels.copy())


def assert_same_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    """Compare all bits; of values that are no number only that they are none."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    if one.dtype.is_floating_point and one.element_size() >= 4:
        assert torch.equal(one.isnan(), other.isnan())
        one, other = one.nan_to_num(nan=0.0), other.nan_to_num(nan=0.0)
    assert one.contiguous().numpy(force=True).tobytes() == other.contiguous().numpy().tobytes()


def assert_as_numpy(transform, images, *, in_place=False, labels=False):
    """Change images by the kernels and by NumPy, and compare."""
    indices = range(len(images))

    def change():
        given = images.clone(memory_format=torch.preserve_format) if in_place else images
        draws = Draws.of(3, 1, indices)
        return transform.batch(given, draws, in_place=in_place, are_labels=labels)

    with pytest.MonkeyPatch.context() as patch:
        compiled = change()
        patch.setattr(_compiled, "kernels", lambda: None)
        expected = change()
    if images.dtype is torch.bfloat16:
        compiled, expected = compiled.view(torch.int16), expected.view(torch.int16)
    assert_same_bits(compiled, expected)


shapes = st.tuples(
    *(st.integers(low, high) for low, high in ((0, 5), (1, 4), (1, 40), (1, 40)))
)
few = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("transform", MOVING, ids=repr)
@few
@given(
    dtype=st.sampled_from(MOVED),
    shape=shapes,
    seed=st.integers(0, 1000),
    in_place=st.booleans(),
    labels=st.booleans(),
)
def test_pixels_are_moved_as_by_numpy(transform, dtype, shape, seed, in_place, labels):
    if transform in {RandomQuarterTurn(), RandomCrop((2, 1), padding=3, fill=7)}:
        shape = (*shape[:2], shape[2], shape[2])

    assert_as_numpy(transform, images_of(shape, dtype, seed), in_place=in_place, labels=labels)


@pytest.mark.parametrize("transform", [*COMPUTING, *WIDE], ids=repr)
@few
@given(
    dtype=st.sampled_from(COMPUTED),
    shape=shapes,
    seed=st.integers(0, 1000),
    in_place=st.booleans(),
)
def test_values_are_computed_as_by_numpy(transform, dtype, shape, seed, in_place):
    assert_as_numpy(transform, images_of(shape, dtype, seed), in_place=in_place)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "transform",
    [RandomFlip(), RandomQuarterTurn(), RandomCrop(50, padding=9, fill=1), *COMPUTING],
    ids=repr,
)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_large_batches_are_the_same_in_any_number_of_threads(transform, dtype, num_threads):
    images = images_of((41, 3, 133, 133), dtype, 5)
    before = torch.get_num_threads()

    torch.set_num_threads(num_threads)
    try:
        assert_as_numpy(transform, images)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "view",
    [
        lambda images: images[::2],
        lambda images: images[:, :, 1::2, ::3],
        lambda images: images.flip(3)[:, :, :, 1:],
        lambda images: images.mT,
        lambda images: images.to(memory_format=torch.channels_last),
        lambda images: images[:1].expand(6, -1, -1, -1),
        lambda images: images[:, :, :0],
    ],
    ids=["every other", "steps", "part", "turned", "channels last", "expanded", "empty"],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "transform", [RandomFlip(), RandomCrop(7, padding=20, fill=3), *COMPUTING], ids=repr
)
def test_views_are_changed_as_by_numpy(transform, dtype, view):
    assert_as_numpy(transform, view(images_of((6, 3, 24, 21), dtype, 4)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_a_view_is_changed_in_place_alone(dtype):
    whole = images_of((6, 3, 12, 12), dtype, 4)
    before = whole.clone()

    changed = RandomFlip(1.0, 0.0).batch(whole[:, 1:2], Draws.of(3, 1, range(6)), in_place=True)

    assert changed.data_ptr() == whole[:, 1:2].data_ptr()
    assert_same_bits(whole[:, 1], before[:, 1].flip(2))
    assert_same_bits(whole[:, ::2], before[:, ::2])


def test_threads_may_use_them_at_once():
    images = images_of((20, 3, 64, 64), torch.uint16, 1)
    transforms = [RandomFlip(), RandomQuarterTurn(), *COMPUTING] * 4

    def change(transform):
        return transform.batch(images, Draws.of(3, 1, range(20)))

    expected = list(map(change, transforms))
    with ThreadPoolExecutor(8) as threads:
        for one, other in zip(threads.map(change, transforms), expected, strict=True):
            assert torch.equal(one.view(torch.int16), other.view(torch.int16))


TAKEN = {
    "reorient": {"out", "images", "ways"},
    "cut": {"out", "images", "tops", "lefts", "fill"},
    "add_noise": {"out", "images", "keys", "factors", "quantiles", "low", "high"},
    "bend": {"out", "images", "exponents", "range", "low", "log2", "exp2"},
    "blur": {"out", "images", "radii", "weights"},
}


def call(name, **changed):
    """Call a kernel with arguments that fit, but for some."""
    images = np.ones((2, 3, 4, 4), np.float32)
    ones, whole = np.ones(2, np.float32), np.zeros(2, np.int64)
    arguments = {
        "reorient": {"out": images + 1, "images": images, "ways": np.zeros(2, np.uint8)},
        "cut": {
            "out": images[:, :, :2, :2].copy(), "images": images, "tops": whole, "lefts": whole,
            "fill": b"1234",
        },
        "add_noise": {
            "out": images + 1, "images": images, "keys": np.zeros(2, np.uint64),
            "factors": ones, "quantiles": np.zeros(65536, np.float32), "low": 0.0, "high": 1.0,
        },
        "bend": {
            "out": images + 1, "images": images, "exponents": ones, "range": None, "low": 0.0,
            "high": 1.0, "log2": np.log2, "exp2": np.exp2,
        },
        "blur": {
            "out": images + 1, "images": images, "radii": whole,
            "weights": np.ones((2, 3), np.float32),
        },
    }[name]  # fmt: skip
    getattr(kernels, name)(*(arguments | changed).values())


IMAGES = np.ones((2, 3, 4, 4), np.float32)
READ_ONLY = IMAGES.copy()
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(17, np.uint8)[1:].view(np.int64)


@pytest.mark.parametrize("name", list(TAKEN))
def test_arguments_that_fit_are_taken(name):
    call(name)


@pytest.mark.parametrize("name", list(TAKEN))
def test_images_may_be_read_only(name):
    call(name, images=READ_ONLY)


UNFIT = [
    {"out": None},
    {"out": READ_ONLY},
    {"out": IMAGES[0]},
    {"out": np.ones((2, 3, 4, 8), np.float32)[..., ::2]},
    {"out": np.ones((2, 3, 4, 4))},
    {"out": np.ones((2, 3, 4, 4), np.int32)},
    {"out": np.ones((3, 3, 4, 4), np.float32)},
    {"out": np.ones((2, 2, 4, 4), np.float32)},
    {"images": "text"},
    {"images": IMAGES[0]},
    {
        "images": np.ones((2, 3, 4, 4), np.complex128),
        "out": np.ones((2, 3, 4, 4), np.complex128),
    },
    {"ways": np.zeros(3, np.uint8)},
    {"ways": np.zeros(2, np.int8)},
    {"ways": np.full(2, 8, np.uint8)},
    {"ways": np.zeros((2, 1), np.uint8)},
    {"tops": np.zeros(1, np.int64)},
    {"tops": np.zeros(2, np.int32)},
    {"tops": np.full(2, 2**63 - 1)},
    {"lefts": np.full(2, -(2**63))},
    {"lefts": UNALIGNED},
    {"fill": b"123"},
    {"fill": "1234"},
    {"keys": np.zeros(2, np.int64)},
    {"factors": np.ones(2)},
    {"quantiles": np.zeros(65535, np.float32)},
    {"low": "0"},
    {"exponents": np.ones(3, np.float32)},
    {"exponents": np.ones(2)},
    {"range": [0.0, 1.0]},
    {"range": (0.0,)},
    {"log2": None},
    {"exp2": np.add},
    {"exp2": np.logical_not},
    {"radii": np.full(2, 2)},
    {"radii": np.full(2, -1)},
    {"weights": np.ones((2, 0), np.float32)},
    {"weights": np.ones((1, 3), np.float32)},
    {"weights": np.ones((2, 3))},
]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (name, number)
        for name, taken in TAKEN.items()
        for number, changed in enumerate(UNFIT)
        if set(changed) <= taken
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, number):
    with pytest.raises((TypeError, ValueError, BufferError)):
        call(name, **UNFIT[number])


def test_images_that_are_not_square_are_not_transposed():
    oblong = np.ones((2, 3, 4, 5), np.float32)

    with pytest.raises(ValueError, match="not square"):
        kernels.reorient(oblong + 1, oblong, np.full(2, 4, np.uint8))


@pytest.mark.parametrize("name", list(TAKEN))
def test_memory_that_is_shared_in_part_is_refused(name):
    memory = np.ones(2 * 3 * 4 * 4 + 1, np.float32)
    one, other = (part.reshape(2, 3, 4, 4) for part in (memory[1:], memory[:-1]))

    with pytest.raises(ValueError, match="share memory"):
        call(name, out=one, images=other)


@pytest.mark.multiprocess
@pytest.mark.parametrize(("value", "is_used"), [("0", False), ("1", True)])
def test_a_variable_leaves_them_out(value, is_used):
    code = "from fastloader.transforms._compiled import kernels; print(kernels() is not None)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FASTLOADER_KERNELS": value},
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout.strip() == str(is_used)
