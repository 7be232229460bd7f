"""The same key gives the same pixels on an accelerator."""

import os

import pytest
import torch

from fastloader.randomness._keyed import mix_tensor
from fastloader.transforms import Draws, RandomGamma
from tests.transforms.test_laws import DTYPES, TRANSFORMS, images, is_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() and os.environ.get("FASTLOADER_REQUIRE_GPU") != "1",
        reason="needs an accelerator",
    ),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_an_accelerator_makes_the_pixels_that_the_cpu_makes(transform, dtype):
    batch = images(40, 2, 32, 33, dtype)

    on_device = transform(batch.cuda(), Draws.of(1, 0, range(40)))

    expected = transform(batch, Draws.of(1, 0, range(40)))
    if isinstance(transform, RandomGamma):  # powers differ in the last bit
        wide = on_device.cpu().double(), expected.double()
        assert torch.allclose(
            *wide, rtol=0.02, atol=1.0 if not dtype.is_floating_point else 1e-2
        )
    elif dtype is torch.float64 and getattr(transform, "fill", None) == "mean":
        # Sums of many float64 numbers are made in another order.
        assert torch.allclose(on_device.cpu(), expected, rtol=1e-12, atol=0)
    else:
        assert is_same(on_device.cpu(), expected)


def test_the_hash_is_the_same_on_an_accelerator():
    values = torch.randint(-(2**63), 2**63 - 1, (100_000,))

    assert torch.equal(mix_tensor(values.cuda()).cpu(), mix_tensor(values))


def test_noise_is_the_same_on_an_accelerator():
    draws = Draws.of(3, 1, range(16))
    draws.uniform()
    batch = torch.zeros(16, 3, 50, 51)

    on_device = Draws(draws.keys, 1).normal_like(batch.cuda())

    assert torch.equal(on_device.cpu(), draws.normal_like(batch))
