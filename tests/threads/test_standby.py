"""Threads that stand by serve one pass after the other, and end when the loader does."""

import threading

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fastloader import FastLoader
from fastloader.threads._standby import StandbyKeeper

pytestmark = pytest.mark.usefixtures("no_leaks")


@pytest.fixture
def keeper():
    keeper = StandbyKeeper()
    yield keeper
    keeper.close()


def thread_of(standby):
    return standby.executor.submit(threading.get_ident).result()


def test_the_next_pass_gets_the_same_thread(keeper):
    standby = keeper.lend()
    first = thread_of(standby)
    standby.give_back()

    again = keeper.lend()

    assert thread_of(again) == first
    again.give_back()


def test_passes_at_the_same_time_have_threads_of_their_own(keeper):
    one, other = keeper.lend(), keeper.lend()

    assert thread_of(one) != thread_of(other)
    one.give_back()
    other.give_back()


def test_what_is_given_back_late_is_ended(keeper, no_leaks):
    standby = keeper.lend()
    thread_of(standby)
    keeper.close()

    standby.give_back()

    no_leaks()


@pytest.fixture
def say_num_threads(monkeypatch):
    """Let torch say that it has another number of threads.

    Really to set it would leave a pool of as many in torch, which each process that is forked
    afterwards starts anew.
    """

    count = torch.get_num_threads

    def say(number):
        def told():
            count()  # its first call in a thread sets that thread's number in OpenMP
            return number

        monkeypatch.setattr(torch, "get_num_threads", told)

    return say


def test_another_number_of_threads_is_followed(keeper, say_num_threads):
    other = torch.get_num_threads() + 2
    keeper.lend().give_back()

    say_num_threads(other)
    standby = keeper.lend()

    assert standby.num_threads == other
    standby.give_back()


def test_torch_leaves_cores_to_the_loop_in_that_thread_alone(keeper, say_num_threads):
    count = torch.get_num_threads
    before = count()

    say_num_threads(8)
    standby = keeper.lend()
    within = standby.executor.submit(count).result()

    assert (within, count()) == (6, before)
    standby.give_back()


def test_threads_that_help_the_consumer_are_kept_too_and_leave_it_no_core(
    keeper, say_num_threads
):
    say_num_threads(8)
    helping = keeper.lend(is_ahead=False)
    helping.give_back()

    ahead, again = keeper.lend(), keeper.lend(is_ahead=False)

    assert again is helping
    assert ahead is not helping
    assert (helping.crew.num_threads, ahead.crew.num_threads) == (7, 5)
    ahead.give_back()
    again.give_back()


class Items(Dataset):
    """Large samples, each made when it is asked for."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((1 << 20,), float(index))


@pytest.mark.parametrize(
    "dataset", [TensorDataset(torch.zeros(16, 1 << 20)), Items()], ids=["rows", "items"]
)
def test_those_who_help_are_the_same_in_each_epoch_and_end_with_the_loader(
    say_num_threads, no_leaks, dataset
):
    def helping():
        return {one.ident for one in threading.enumerate() if one.name == "fastloader-crew"}

    say_num_threads(3)
    loader = FastLoader(dataset, 4, num_workers=0)
    seen = []
    for _ in range(3):
        assert len(list(loader)) == 4
        seen.append(helping())

    assert len(seen[0]) == 2
    assert seen == [seen[0]] * 3
    del loader
    no_leaks()
