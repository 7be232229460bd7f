"""The field and the sample that spoil a batch are named."""

import numpy as np
import pytest
import torch

from fastloader.engine._collate_errors import find_misfits, warn_of_lost_keys


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            [{"image": torch.zeros(3, 4)}, {"image": torch.zeros(3, 5)}],
            ["['image']", "(3, 5)", "index 8"],
        ),
        ([(np.zeros(2), 1), (np.zeros(3), 1)], ["[0]", "(3,)", "index 8"]),
        ([{"mask": torch.zeros(2)}, {"mask": None}], ["['mask']", "None", "8"]),
        ([torch.zeros(2), None], ["None", "8"]),
        ([{"a": 1, "b": 2}, {"a": 1}], ["'b'", "missing", "8"]),
        ([[1, 2], [1, 2, 3]], ["3", "index 8"]),
        ([{"box": {"x": 1.0}}, {"box": {"x": "far"}}], ["['box']['x']", "str", "8"]),
    ],
    ids=["ragged", "ragged-array", "none-field", "none", "key", "length", "type"],
)
def test_the_misfit_is_named(samples, words):
    text = find_misfits(samples, [7, 8])

    assert all(word in text for word in words), text


def test_samples_that_fit_have_no_misfit():
    assert find_misfits([(torch.zeros(2), 1)] * 3, [0, 1, 2]) is None


def test_keys_that_collate_would_drop_bring_a_warning():
    with pytest.warns(UserWarning, match=r"Sample 6 has the keys \['mask'\]"):
        warn_of_lost_keys([{"image": 1}, {"image": 2, "mask": 3}], [5, 6])


def test_nested_keys_are_watched_too():
    with pytest.warns(UserWarning, match="mask"):
        warn_of_lost_keys([(1, {"image": 1}), (1, {"image": 2, "mask": 3})], [5, 6])
