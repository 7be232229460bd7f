"""Labels of any kind of column, with and without a mapping."""

import datetime as dt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from fastloader.datasets._labels import Labels
from fastloader.errors import SettingsError, SourceError

DAYS = [dt.date(2026, 1, 2), dt.date(2026, 1, 1)]

KINDS = {
    "integers": (np.array([3, 1, 2], np.uint8), None, [3, 1, 2], None),
    "floats": (np.array([0.5, 1.5], np.float32), None, [0.5, 1.5], None),
    "booleans": ([True, False], None, [True, False], None),
    "strings": (["b", "a", "b"], None, [1, 0, 1], ("a", "b")),
    "lists": ([[1.5, 2.0], [3.0, 4.5]], None, [[1.5, 2.0], [3.0, 4.5]], None),
    "strings in an order": (["b", "a"], ["b", "a"], [0, 1], ("b", "a")),
    "numbers in an order": (np.array([30, 10]), [10, 20, 30], [2, 0], (10, 20, 30)),
    "mapped strings": (["no", "yes"], {"yes": 1.0, "no": 0.0}, [0.0, 1.0], None),
    "mapped dates": (DAYS, {DAYS[0]: 5, DAYS[1]: 6}, [5, 6], None),
    "mapped NaN": (np.array([1.0, np.nan]), {1.0: 3, float("nan"): 4}, [3, 4], None),
    "mapped nulls": (["a", None], {"a": 1, None: -1}, [1, -1], None),
}


@pytest.mark.parametrize(
    ("column", "mapping", "expected", "classes"), KINDS.values(), ids=KINDS.keys()
)
def test_a_column_becomes_numbers(column, mapping, expected, classes):
    labels = Labels.of(column, "here", mapping)

    assert labels.values.tolist() == expected
    assert labels.classes == classes


@pytest.mark.parametrize(
    ("column", "mapping", "expected", "classes"), KINDS.values(), ids=KINDS
)
def test_a_batch_equals_its_collated_samples(column, mapping, expected, classes):
    labels = Labels.of(column, "here", mapping)
    indices = [1, 0, 1]

    batch = labels.batch(np.array(indices))

    collated = default_collate([labels.sample(index) for index in indices])
    torch.testing.assert_close(collated, batch, rtol=0, atol=0)


@given(st.lists(st.text(max_size=3), min_size=1, max_size=20))
def test_classes_give_the_strings_back(column):
    labels = Labels.of(column, "here")

    assert [labels.classes[number] for number in labels.values] == column


@pytest.mark.parametrize(
    ("column", "mapping", "error", "message"),
    [
        (["a", None], None, SourceError, "here: label 1 is null.*filter=.*label_mapping="),
        (DAYS, None, SourceError, "but got datetime.date.*label_mapping="),
        ([[1], [1, 2]], None, SourceError, "lists of numbers of one length"),
        (np.array([2**63], np.uint64), None, SourceError, "more than int64 can hold"),
        (["a", "c"], ["a", "b"], SettingsError, "no number for 'c' of sample 1"),
        ([[1], [2]], ["a"], SettingsError, r"no number for \[1\] of sample 0"),
        (["a"], {"a": "b"}, SourceError, "but got 'b'"),
        (["a"], ["b", "a", "b"], SettingsError, "has 'b' in places 0 and 2"),
        (["a"], {"b", "a"}, SettingsError, "a list of the labels in the order"),
        (["a"], 3, SettingsError, "label_mapping=3: expected the number of each label"),
    ],
)
def test_what_is_no_label_is_an_error_that_names_it(column, mapping, error, message):
    with pytest.raises(error, match=message):
        Labels.of(column, "here", mapping)


@pytest.mark.parametrize(
    ("column", "mapping", "dtype"),
    [
        ([], None, torch.int64),
        ([], ["a", "b"], torch.int64),
        (np.zeros(0, np.uint8), None, torch.int64),
        (np.zeros(0, np.float32), None, torch.float32),
        (np.zeros(0, np.bool_), None, torch.bool),
    ],
    ids=["text", "text in an order", "integers", "floats", "booleans"],
)
def test_no_rows_have_labels_of_the_type_that_rows_would_have(column, mapping, dtype):
    labels = Labels.of(column, "here", mapping)

    assert labels.values.shape == (0,)
    assert labels.values.dtype == dtype
