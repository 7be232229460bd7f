"""Damaged files give documented errors or the pixels of the plain reader: never a crash."""

import pytest

from tests.sources.fuzzing import ALLOWED, run_in_children
from tests.sources.test_formats import WRITERS

SMALL_SHARE = 100
KINDS = [*sorted(WRITERS), "pages"]


def wrong(kind, num_files):
    """Return the outcomes that are not allowed, by seed."""
    if kind not in {"pages", "parquet", "arrow", "feather"}:
        pytest.importorskip(kind)
    outcomes = run_in_children(kind, 0, num_files)
    assert len(outcomes) == num_files
    return {seed: outcome for seed, outcome in outcomes.items() if outcome not in ALLOWED}


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused_or_read_rightly(kind):
    assert wrong(kind, SMALL_SHARE) == {}


@pytest.mark.multiprocess
@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
def test_two_thousand_damaged_files_are_refused_or_read_rightly(kind):
    assert wrong(kind, 2000) == {}
