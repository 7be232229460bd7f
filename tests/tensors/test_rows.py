"""A batch of several batches falls into its parts, which share its memory."""

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.tensors._rows import count_bytes, cut_rows, has_rows
from tests.equality import assert_same


class Pair(NamedTuple):
    first: Any
    second: Any


def structures(num_rows):
    tensor = st.sampled_from([
        torch.arange(num_rows),
        torch.rand(num_rows, 2, 3),
        torch.zeros(num_rows, 0, dtype=torch.bfloat16),
    ])
    return st.recursive(
        tensor,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3),
            st.lists(inner, min_size=1, max_size=3).map(tuple),
            st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=3),
            st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        ),
        max_leaves=6,
    )


def rows_of(batch, rows):
    if isinstance(batch, torch.Tensor):
        return batch[rows]
    if isinstance(batch, dict):
        return {name: rows_of(part, rows) for name, part in batch.items()}
    parts = [rows_of(part, rows) for part in batch]
    return type(batch)(*parts) if isinstance(batch, Pair) else type(batch)(parts)


@given(batch=structures(12), lengths=st.sampled_from([[12], [5, 7], [4, 4, 4], [1] * 12]))
def test_parts_are_the_rows_in_their_order_and_structure(batch, lengths):
    assert has_rows(batch, 12)

    parts = cut_rows(batch, lengths)

    start = 0
    for part, length in zip(parts, lengths, strict=True):
        assert_same(rows_of(batch, slice(start, start + length)), part)
        start += length


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(3), torch.zeros(()), ["a", "b"], [], {}, [torch.zeros(2), None], 2, "ab"],
    ids=repr,
)
def test_what_cannot_be_cut_is_known(batch):
    assert not has_rows(batch, 2)


def test_parts_may_be_changed_by_something_differentiable():
    factor = torch.ones(2, requires_grad=True)

    first, _ = cut_rows(torch.ones(4), [2, 2])
    first.mul_(factor)

    assert first.requires_grad


def test_bytes_are_those_of_all_tensors():
    assert count_bytes({"a": torch.zeros(3), "b": [torch.zeros(3, 2, dtype=torch.int64)]}) == 60
