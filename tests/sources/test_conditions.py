"""Conditions are read from their text, which is never taken for less than it may be."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fastloader.sources._conditions import statistics_suffice

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
