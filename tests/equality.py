"""Equality of batches: structure, types, dtypes, shapes and every bit."""

import math
from collections.abc import Mapping

import numpy as np
import torch


def assert_same(expected, actual, path="batch"):
    """Fail unless two batches are alike in every respect that a user could see."""
    assert type(expected) is type(actual), f"{path}: {type(expected)} is not {type(actual)}"
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == actual.dtype, path
        assert expected.shape == actual.shape, path
        assert expected.requires_grad == actual.requires_grad, path
        assert bits(expected) == bits(actual), f"{path} has other values"
    elif isinstance(expected, np.ndarray):
        assert expected.dtype == actual.dtype, path
        assert expected.shape == actual.shape, path
        assert expected.tobytes() == actual.tobytes(), f"{path} has other values"
    elif isinstance(expected, Mapping):
        assert list(expected) == list(actual), path
        for key, value in expected.items():
            assert_same(value, actual[key], f"{path}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(actual), path
        for position, value in enumerate(expected):
            assert_same(value, actual[position], f"{path}[{position}]")
    else:
        both_nan = isinstance(expected, float) and math.isnan(expected) and math.isnan(actual)
        assert expected == actual or both_nan, path


def bits(tensor):
    """Bytes of the values in C order; works for every dtype, also those NumPy lacks."""
    # A clone: a tensor of one element counts as contiguous whatever its strides are.
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
