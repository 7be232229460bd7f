"""Samples and bytes of batches of any structure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fastloader import FastLoader
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


def deep():
    batch = [torch.zeros(3)]
    for _ in range(5000):
        batch = [batch]
    return batch


def inside_itself():
    nodes = [torch.zeros(3), {}]
    nodes[1]["nodes"] = nodes
    return nodes


def in_first_place():
    batch = []
    batch.append(batch)
    return batch


@pytest.mark.parametrize(
    ("make", "num_samples", "num_bytes"),
    [(deep, 3, 12), (inside_itself, 3, 12), (in_first_place, 9, 0)],
)
def test_a_batch_of_any_depth_is_measured_once(make, num_samples, num_bytes):
    batch = make()

    assert count_samples(batch, otherwise=9) == num_samples
    assert count_batch_bytes(batch) == num_bytes


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_holds_itself_is_delivered(num_workers):
    loader = FastLoader([inside_itself()], 1, num_workers=num_workers, collate_fn=list)

    ((nodes,),) = loader

    assert nodes[1]["nodes"] is nodes
