"""Hypothesis strategies for samples and batches of any structure."""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st


class Point(NamedTuple):
    x: Any
    y: Any


TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip
NUMPY_DTYPES = [
    np.bool_, np.uint8, np.uint16, np.int32, np.int64, np.float16, np.float32, np.float64,
    np.complex128,
]  # fmt: skip

shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def tensors(draw, shape=shapes):
    """A tensor of any dtype, contiguous or not."""
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    seed = draw(st.integers(0, 2**31))
    size = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 200, size, generator=generator)
    tensor = raw.to(dtype)
    layout = draw(st.sampled_from(["plain", "transposed", "sliced", "expanded"]))
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "sliced":
        return torch.stack([tensor, tensor], -1)[..., 0]
    if layout == "expanded":
        return tensor.reshape(-1)[:1].expand(3) if tensor.numel() else tensor
    return tensor


@st.composite
def arrays(draw):
    """A NumPy array of any numeric dtype and order."""
    dtype = draw(st.sampled_from(NUMPY_DTYPES))
    shape = draw(shapes)
    array = (
        np.random.default_rng(draw(st.integers(0, 99))).integers(0, 200, shape).astype(dtype)
    )
    order = draw(st.sampled_from(["C", "F", "stepped"]))
    if order == "F":
        return np.asfortranarray(array)
    if order == "stepped":
        return np.repeat(array, 2, axis=0)[::2] if array.ndim else array
    return array


leaves = st.one_of(
    tensors(),
    arrays(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
    st.booleans(),
)


batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.integers(0, 5), inner, max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda pair: Point(*pair)),
    ),
    max_leaves=8,
)
"""Any nesting of tensors, arrays and plain values."""
