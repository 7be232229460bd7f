"""Parts of a dataset: complete, disjoint, of the right size, and with whole groups."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset

from fastloader import split
from fastloader.datasets import DatasetWrapper
from fastloader.errors import SettingsError


@st.composite
def fractions(draw, max_parts=4):
    weights = draw(st.lists(st.integers(1, 20), min_size=1, max_size=max_parts))
    return [weight / sum(weights) for weight in weights]


def try_split(*args, **kwargs):
    """Return the parts, or None if one would be empty."""
    try:
        return split(*args, **kwargs)
    except SettingsError as error:
        if "empty" not in str(error):
            raise
        return None


@given(shares=fractions(), size=st.integers(1, 200), seed=st.integers(0, 9))
def test_parts_are_disjoint_and_complete_and_of_exact_size(shares, size, seed):
    parts = try_split(range(size), shares, seed=seed)

    if parts is not None:
        assert sorted(i for part in parts for i in part.indices) == list(range(size))
        assert all(
            abs(len(part) - size * share) < 1 for part, share in zip(parts, shares, strict=True)
        )


LABELS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=150)


@given(shares=fractions(), labels=LABELS, seed=st.integers(0, 9))
def test_each_label_has_its_share_to_within_one_sample(shares, labels, seed):
    parts = try_split(labels, shares, seed=seed, stratify=labels)

    if parts is not None:
        totals = Counter(labels)
        for part, share in zip(parts, shares, strict=True):
            found = Counter(labels[i] for i in part.indices)
            assert all(abs(found[key] - totals[key] * share) <= 1 for key in totals)


@given(shares=fractions(), labels=LABELS, seed=st.integers(0, 9))
def test_stratified_parts_are_complete_and_of_exact_size(shares, labels, seed):
    parts = try_split(labels, shares, seed=seed, stratify=labels)

    if parts is not None:
        size = len(labels)
        assert sorted(i for part in parts for i in part.indices) == list(range(size))
        assert all(
            abs(len(part) - size * share) < 1 for part, share in zip(parts, shares, strict=True)
        )


@given(
    shares=fractions(),
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=100),
    seed=st.integers(0, 9),
    stratified=st.booleans(),
)
def test_no_group_is_in_two_parts(shares, groups, seed, stratified):
    labels = [group % 2 for group in groups] if stratified else None

    parts = try_split(groups, shares, seed=seed, groups=groups, stratify=labels)

    if parts is None:
        assert len(set(groups)) < len(shares)
    else:
        found = [{groups[i] for i in part.indices} for part in parts]
        assert sum(map(len, found)) == len(set(groups)) == len(set.union(*found))
        assert sorted(i for part in parts for i in part.indices) == list(range(len(groups)))


def test_many_groups_give_nearly_exact_sizes():
    groups = np.random.default_rng(0).integers(0, 100, 2000)

    parts = split(groups, [0.7, 0.2, 0.1], seed=0, groups=groups)

    assert [len(part) for part in parts] == pytest.approx([1400, 400, 200], abs=15)


def test_groups_keep_the_shares_of_labels_where_they_can():
    generator = np.random.default_rng(0)
    groups = generator.integers(0, 200, 4000)
    labels = (groups % 10 == 0) | (generator.random(4000) < 0.1)

    parts = split(labels, [0.7, 0.3], seed=0, groups=groups, stratify=labels)

    assert [labels[part.indices].mean() for part in parts] == pytest.approx(
        [labels.mean()] * 2, abs=0.01
    )


def test_the_seed_decides():
    def draw(seed):
        return split(range(100), [0.5, 0.5], seed=seed)[0].indices

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_labels_may_be_tensors():
    parts = split(range(8), [0.5, 0.5], seed=0, stratify=torch.tensor([0, 1] * 4))

    assert [sum(i % 2 for i in part.indices) for part in parts] == [2, 2]


class Missing:
    """Neither equal to itself nor not, as pandas' NA."""

    def __ne__(self, _other):
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


class Table(list):
    metadata = {"plate": ["A", "A", "B", "B"]}  # noqa: RUF012


def test_a_column_of_the_metadata_can_be_named():
    parts = split(Table("wxyz"), [0.5, 0.5], seed=0, groups="plate")

    assert sorted(part.indices for part in parts) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        pytest.param([[0.5, 0.4]], {}, "add up to 1", id="too little"),
        pytest.param([[1.2, -0.2]], {}, "above 0", id="negative"),
        pytest.param([[]], {}, "add up", id="none"),
        pytest.param([0.5], {}, "must be a list of numbers, but got 0.5", id="a number"),
        pytest.param([["a", "b"]], {}, "must be a list of numbers", id="words"),
        pytest.param([[0.99, 0.01]], {}, "part empty", id="too small a part"),
        pytest.param([[0.2] * 5], {}, "4 samples cannot be split into 5", id="too many"),
        pytest.param([[0.5, 0.5]], {"groups": [1] * 4}, "1 groups", id="one group"),
        pytest.param([[0.5, 0.5]], {"stratify": [1]}, "for each of 4", id="labels"),
        pytest.param(
            [[0.5, 0.5]], {"groups": [1, 2, None, 3]}, "first is sample 2", id="missing"
        ),
        pytest.param(
            [[0.5, 0.5]], {"stratify": [1.0, np.nan, 1.0, 0.0]}, "first is sample 1", id="NaN"
        ),
        pytest.param([[0.5, 0.5]], {"groups": "well"}, "no column", id="column"),
    ],
)
def test_impossible_splits_are_explained(arguments, options, message):
    with pytest.raises(SettingsError, match=message):
        split(Table("wxyz"), *arguments, seed=0, **options)


@pytest.mark.parametrize("seed", [None, -1, 1.5, "a"])
def test_a_split_needs_a_seed(seed):
    with pytest.raises(SettingsError, match="seed must be a whole number from 0"):
        split(range(10), [0.5, 0.5], seed=seed)


def test_what_has_no_length_cannot_be_split():
    with pytest.raises(SettingsError, match="range_iterator has no length"):
        split(iter(range(10)), [0.5, 0.5], seed=0)


def test_groups_may_be_tuples():
    groups = [("A", 1), ("A", 2), ("A", 1), ("B", 1), ("A", 2), ("B", 1)]

    parts = split(range(6), [0.7, 0.3], seed=0, groups=groups)

    assert [len(part) for part in parts] == [4, 2]
    assert not set.intersection(*({groups[i] for i in part.indices} for part in parts))


def test_a_number_and_its_digits_are_two_labels():
    parts = split(range(8), [0.5, 0.5], seed=0, stratify=[1, "1"] * 4)

    assert [sum(i % 2 for i in part.indices) for part in parts] == [2, 2]


def test_labels_may_be_scalars_of_torch_in_a_list():
    labels = [torch.tensor(i % 2) for i in range(8)]

    parts = split(range(8), [0.5, 0.5], seed=0, stratify=labels)

    assert [sum(i % 2 for i in part.indices) for part in parts] == [2, 2]


@pytest.mark.parametrize("view", [lambda part: part, DatasetWrapper], ids=["part", "wrapped"])
def test_a_part_can_be_split_by_the_columns_of_the_whole(view):
    dataset = Table("wxyz")
    dataset.metadata = {"plate": np.array(["A", "C", "B", "C"])}

    parts = split(view(Subset(dataset, [3, 0, 1])), [0.6, 0.4], seed=0, groups="plate")

    assert sorted(part.indices for part in parts) == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        pytest.param(["a", Missing(), "b", "c"], "first is sample 1", id="like pandas' NA"),
        pytest.param([("a", 1), ("a", None)] * 2, "first is sample 1", id="in a tuple"),
        pytest.param([[1], [2], [3], [4]], r"but got \[1\]", id="lists"),
        pytest.param(np.zeros((4, 2)), r"shape \(4, 2\)", id="a table"),
        pytest.param((i for i in range(4)), r"shape \(\)", id="a generator"),
    ],
)
def test_groups_that_cannot_be_told_apart_are_named(groups, message):
    with pytest.raises(SettingsError, match=message):
        split(range(4), [0.5, 0.5], seed=0, groups=groups)
