"""Whatever samples are made of, and whatever workers are, batches equal stock's."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from fastloader import FastLoader
from tests.engine.datasets import Structures
from tests.equality import assert_same

KINDS = {
    "none": {"num_workers": 0},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
    "threads": {"num_workers": 2, "workers": "threads"},
}

pytestmark = pytest.mark.multiprocess


class Asked:
    """A batch sampler that gives what it was told to."""

    def __init__(self):
        self.batches = []

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def as_list(samples):
    return list(samples)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=pytest.mark.slow) if kind == "spawn" else kind
        for kind in KINDS
    ],
)
def loaders(request):
    """Loaders with live workers, for samples that collate and for any others."""
    made = {}
    for name, options in {
        "alike": {"dataset": Structures()},
        "ragged": {"dataset": Structures(ragged=True), "collate_fn": as_list},
    }.items():
        asked = Asked()
        stock = DataLoader(batch_sampler=asked, **options)
        made[name] = (
            asked,
            stock,
            FastLoader(batch_sampler=asked, **options, **KINDS[request.param]),
        )
    yield made
    for _, _, loader in made.values():
        loader._opener.keeper.close()


@pytest.mark.parametrize("samples", ["alike", "ragged"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    structures=st.lists(st.integers(0, 100_000), min_size=1, max_size=6),
    size=st.integers(1, 5),
)
def test_batches_equal_stocks(loaders, samples, structures, size):
    asked, stock, loader = loaders[samples]
    asked.batches = [[1000 * s + k for k in range(size)] for s in structures]

    for expected, batch in zip(stock, loader, strict=True):
        assert_same(expected, batch)
