"""Samples and bytes of batches of any structure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastloader.stats import count_batch_bytes, count_samples


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclass
class Fields:
    image: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "num_samples", "num_bytes"),
    [
        (torch.zeros(5, 2), 5, 40),
        (np.zeros((3, 2)), 3, 48),
        ([torch.zeros(4), torch.zeros(4, dtype=torch.uint8)], 4, 20),
        ({"names": ["a", "b"], "image": torch.zeros(2, 3)}, 2, 24),
        (Pair(torch.zeros(6), {"x": torch.zeros(6)}), 6, 48),
        (torch.zeros(()), 9, 4),
        (Fields(torch.zeros(7)), 9, 28),
        (object(), 9, 0),
        ([], 9, 0),
        ([1, 2, 3], 9, 0),
    ],
    ids=[
        "tensor",
        "array",
        "fields",
        "strings",
        "named",
        "scalar",
        "class",
        "any",
        "empty",
        "ints",
    ],
)
def test_a_batch_is_measured(batch, num_samples, num_bytes):
    assert count_samples(batch, otherwise=9) == num_samples
    assert count_batch_bytes(batch) == num_bytes
