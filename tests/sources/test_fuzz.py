"""Damaged files give documented errors or the pixels of the plain reader: never a crash."""

import pytest

from tests.sources.fuzzing import ALLOWED, run_in_children
from tests.sources.test_formats import WITH_THREADS, WRITERS

SMALL_SHARE = 100
KNOWN_TO_ABORT = {
    "lance": "a panic in a destructor of pylance 14 ends the process, about 2 in 1,000 files",
    "vortex": "a panic in a destructor of vortex-data 0.93 ends the process, about 1 in 100 files",
}


def wrong(kind, num_files):
    """Return the outcomes that are not allowed, by seed."""
    if kind not in {"parquet", "arrow", "feather"}:
        pytest.importorskip(kind)
    outcomes = run_in_children(kind, 0, num_files)
    assert len(outcomes) == num_files
    return {
        seed: outcome
        for seed, outcome in outcomes.items()
        if outcome not in ALLOWED
        and not (kind in KNOWN_TO_ABORT and outcome.startswith("died (-6)"))
    }


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", sorted(WRITERS.keys() - WITH_THREADS))
def test_damaged_files_are_refused_or_read_rightly(kind):
    assert wrong(kind, SMALL_SHARE) == {}


@pytest.mark.multiprocess
@pytest.mark.stress
@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_two_thousand_damaged_files_are_refused_or_read_rightly(kind):
    assert wrong(kind, 2000) == {}
