"""Conditions are read from their text, which is never taken for less than it may be."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fastloader.sources._conditions import matching_rows, statistics_suffice

AREA, WELL = pc.field("area"), pc.field("well")


@pytest.mark.parametrize(
    "condition",
    [
        AREA > 1,
        (AREA <= 1) & ((WELL == "A") | (pc.scalar(2) < AREA)),
        pc.equal(AREA, np.nan),
        pc.field("other area") < AREA,
        (AREA >= 1) | AREA.is_null(),
        (AREA >= 1) | WELL.is_valid(),
        (AREA < 1) & WELL.isin(["A", "B"]),
    ],
    ids=str,
)
def test_statistics_suffice_for_comparisons_joined_by_and_and_or(condition):
    assert statistics_suffice(condition)


@pytest.mark.parametrize(
    "condition",
    [
        AREA != 1,
        ~(AREA > 1),
        (AREA > 1) == (WELL == "A"),
        (AREA > 1) == False,  # noqa: E712
        pc.scalar(False) >= (AREA > 1),
        pc.equal(AREA > 1, WELL.is_null()),
        (AREA > 1).is_valid(),
        AREA.is_null(nan_is_null=True),
        AREA.is_nan() & (WELL == "A"),
        AREA.isin([1.0, np.nan]),
        AREA.isin(pa.array([1, 2])),
        AREA.isin(pa.array([1.0, np.nan], pa.float32())),
        pc.xor(AREA > 1, WELL == "A"),
        pc.and_not(WELL == "A", AREA > 1),
        pc.if_else(AREA > 1, False, True),
        AREA.cast("string") == "nan",
        (AREA > 1) & pc.field("flag"),
        (WELL == "(a > 1)") & ~(AREA > 1),
        (AREA > 1) & (pc.field("a == b") != "c == d"),
        (pc.field("a > b) or (c") == (AREA > 1)),
        ~(pc.field("(area > 1)") > 1),
    ],
    ids=str,
)
def test_whatever_else_may_be_met_by_nan_of_which_they_do_not_tell(condition):
    assert not statistics_suffice(condition)


@pytest.mark.parametrize(
    ("values", "condition"),
    [
        (pa.array(["x", "b", None, "b"], pa.string_view()), WELL == "b"),
        (pa.array(["x", "b", None, "b"], pa.string_view()), WELL.isin(["b", "c"])),
        (pa.array([b"x", b"b", None, b"b"], pa.binary_view()), WELL == b"b"),
        (pa.array([1, 2, None, 2.5], pa.float16()), WELL > 1),
        (
            pa.RunEndEncodedArray.from_arrays([1, 2, 3, 4], pa.array(["x", "b", None, "b"])),
            WELL == "b",
        ),
        (
            pa.DictionaryArray.from_arrays(
                pa.array([1, 0, None, 0]), pa.array(["b", "x"], pa.string_view())
            ),
            WELL == "b",
        ),
        (
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(["x", "b", None, "b"])),
            pc.starts_with(WELL, "b"),
        ),
        (
            pa.array(
                [{"q": "x"}, {"q": "b"}, None, {"q": "b"}], pa.struct([("q", pa.string_view())])
            ),
            pc.field("well", "q") == "b",
        ),
        (
            pa.array([[], ["b"], None, ["b"]], pa.large_list(pa.string_view())),
            pc.list_value_length(WELL) > 0,
        ),
    ],
    ids=["view", "is in", "bytes", "half", "runs", "dictionary", "own type", "struct", "list"],
)
def test_columns_in_types_that_arrow_cannot_compute_with_are_compared(values, condition):
    table = pa.table({"area": [1, 2, 3, 4], "well": values})

    assert matching_rows(table, condition, "a table").tolist() == [1, 3]
