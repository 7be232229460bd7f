"""Ctrl-C in the middle of a fork comes after it."""

import os
import signal
import threading

import pytest

from fastloader import FastLoader
from fastloader.threads._deferred_interrupt import interrupts_deferred

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

_hooks: list[str] = []
"""In which an interrupt comes; hooks cannot be taken back."""


def interrupt(hook):
    if hook in _hooks:
        _hooks.remove(hook)
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(scope="module", autouse=True)
def registered():
    os.register_at_fork(
        before=lambda: interrupt("before"), after_in_parent=lambda: interrupt("after")
    )


@pytest.fixture(autouse=True)
def _hooks_cleared(interruptible):
    yield
    _hooks.clear()


@pytest.mark.parametrize("hook", ["before", "after"])
def test_an_interrupt_in_a_hook_of_a_fork_is_raised_after_it(hook):
    children = []

    def fork():
        with interrupts_deferred():
            _hooks.append(hook)
            child = os.fork()
            if child == 0:
                os._exit(0)
            children.append(child)

    with pytest.raises(KeyboardInterrupt):
        fork()

    assert os.waitpid(children[0], 0)[1] == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_the_block_raises_is_raised_where_nobody_interrupts():
    with pytest.raises(OSError, match="no more processes"), interrupts_deferred():
        raise OSError("no more processes")

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    with interrupts_deferred():
        signal.raise_signal(signal.SIGINT)

    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


def test_other_threads_leave_the_handler_alone():
    seen = []

    def look():
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [signal.default_int_handler]


@pytest.mark.multiprocess
@pytest.mark.parametrize("hook", ["before", "after"])
def test_an_interrupt_while_workers_are_forked_reaches_the_loop(hook):
    loader = FastLoader(range(8), 2, num_workers=1, multiprocessing_context="fork")
    _hooks.append(hook)

    with pytest.raises(KeyboardInterrupt):
        list(loader)

    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
