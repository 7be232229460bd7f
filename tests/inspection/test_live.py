"""What is read from and told to datasets that may be wrapped, or stand for others."""

from unittest.mock import MagicMock

import pytest
from torch.utils.data import ConcatDataset, Subset

from fastloader import FastLoader
from fastloader.inspection._live import knows, load_live_state, read_live_state, tell


class Live:
    def __init__(self):
        self.state, self.told = 1, []

    def __len__(self):
        return 4

    def live_state(self):
        return self.state

    def load_live_state(self, state):
        self.state = state

    def set_epoch(self, epoch):
        self.told.append(epoch)


class Proxy:
    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


class Anything:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: "anything"


@pytest.mark.parametrize(
    "wrap",
    [lambda one: one, lambda one: Subset(one, [0]), lambda one: ConcatDataset([one]), Proxy],
    ids=["itself", "subset", "concatenated", "proxy"],
)
def test_state_and_epoch_reach_a_dataset_wherever_it_is(wrap):
    one, other = Live(), Live()
    one.state = 5

    assert knows(wrap(one), "set_epoch")
    load_live_state(wrap(other), read_live_state(wrap(one)))
    tell(wrap(other), "set_epoch", 3)

    assert other.state == 5
    assert other.told == [3]


@pytest.mark.parametrize("make", [object, MagicMock, Anything])
def test_what_has_methods_of_any_name_has_none(make):
    dataset = make()

    assert read_live_state(dataset) is None
    assert not knows(dataset, "set_epoch")
    tell(dataset, "set_epoch", 3)
    if make is MagicMock:
        dataset.set_epoch.assert_not_called()


@pytest.mark.multiprocess
def test_a_mock_is_read_by_workers():
    dataset = MagicMock()
    dataset.__len__.return_value = 8
    dataset.__getitem__.side_effect = lambda index: index

    loader = FastLoader(dataset, 4, num_workers=1, multiprocessing_context="fork")

    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
