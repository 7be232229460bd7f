"""What is open belongs to one process and thread, and goes with its owner."""

import gc
import pickle
import threading
import weakref

from fastloader.sources._opened_here import OpenedHere


class Handle:
    """Something open."""


class Owner:
    """Opens a handle where it is needed."""

    def __init__(self):
        self.opened = OpenedHere(self.open)

    def open(self):
        return Handle()


def test_what_is_open_goes_with_its_owner_without_a_collection():
    gc.disable()
    try:
        owner = Owner()
        handle = weakref.ref(owner.opened.get())
        assert handle() is not None

        del owner

        assert handle() is None
    finally:
        gc.enable()


def test_a_copy_by_pickle_opens_its_own():
    owner = Owner()
    handle = owner.opened.get()

    copy = pickle.loads(pickle.dumps(owner))

    assert owner.opened.get() is handle
    assert copy.opened.get() is not handle
    assert copy.opened.get() is copy.opened.get()


def test_each_thread_opens_its_own_until_all_are_closed():
    owner = Owner()
    handle, others = owner.opened.get(), []

    thread = threading.Thread(target=lambda: others.append(owner.opened.get()))
    thread.start()
    thread.join()

    assert others[0] is not handle
    assert owner.opened.get() is handle
    owner.opened.close()
    assert owner.opened.get() is not handle


def test_a_function_is_called_as_well_as_a_method():
    assert pickle.loads(pickle.dumps(OpenedHere(dict))).get() == {}
