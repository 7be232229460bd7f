"""The field and the sample that spoil a batch are named."""

from pathlib import PurePath

import numpy as np
import pytest
import torch

from fastloader.engine._collate_errors import find_lost_keys, find_misfits


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [{"image": torch.zeros(3, 4)}, {"image": torch.zeros(3, 5)}],
            ["['image']", "(3, 4) at index 7", "(3, 5) at index 8"],
        ),
        ([(np.zeros(2), 1), (np.zeros(3), 1)], ["[0]", "(3,)", "index 8"]),
        ([{"mask": torch.zeros(2)}, {"mask": None}], ["['mask']", "None", "8"]),
        ([torch.zeros(2), None], ["None", "8"]),
        ([{"a": 1, "b": 2}, {"a": 1}], ["'b'", "missing", "8"]),
        ([[1, 2], [1, 2, 3]], ["3", "index 8"]),
        ([{"box": {"x": 1.0}}, {"box": {"x": "far"}}], ["['box']['x']", "str", "8"]),
        ([{"picture": PurePath("a.png")}] * 2, ["['picture']", "PurePosixPath", "index 7"]),
        ([(np.array([None]), 1)] * 2, ["[0]", "object", "index 7"]),
        ([(1, torch.eye(2)), (2.5, torch.eye(2).to_sparse())], ["[1]", "sparse", "8"]),
        ([torch.zeros(2), torch.zeros(2, device="meta")], ["meta", "8"]),
        ([torch.eye(2).to_sparse()] * 2, ["sparse_coo", "index 7", "dense tensors"]),
        (
            [torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged)] * 2,
            ["nested", "index 7"],
        ),
        ([1, 1 << 63], [str(1 << 63), "64 bits", "index 8"]),
    ],
    ids=[
        "ragged",
        "ragged-array",
        "none-field",
        "none",
        "key",
        "length",
        "type",
        "no-data",
        "objects",
        "layout-after-numbers-that-mix",
        "device",
        "layout",
        "nested",
        "large number",
    ],
)
def test_the_misfit_is_named(samples, words):
    text = find_misfits(samples, [7, 8])

    assert all(word in text for word in words), text


def test_samples_that_fit_have_no_misfit():
    assert find_misfits([(torch.zeros(2), 1)] * 3, [0, 1, 2]) is None


@pytest.mark.parametrize(
    "samples",
    [
        [{"image": 1}, {"image": 2, "mask": 3}],
        [(1, {"image": 1}), (1, {"image": 2, "mask": 3})],
        [{"image": {"pixels": 1}}, {"image": {"pixels": 2, "mask": 3}}],
    ],
    ids=["at the top", "in a tuple", "in a dict"],
)
def test_keys_that_collate_would_drop_are_found(samples):
    text = find_lost_keys(samples, [5, 6])

    assert text.startswith("Sample 6 has the keys ['mask']")


def test_no_key_is_lost_where_all_samples_have_the_same():
    assert find_lost_keys([{"image": {"pixels": 1}}] * 2, [5, 6]) is None
