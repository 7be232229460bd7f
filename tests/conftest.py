"""Fixtures of all tests: nothing random and no process, thread or descriptor stays behind."""

import gc
import multiprocessing.forkserver
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest
import torch

from fastloader.engine._launch import PRELOADED
from fastloader.machine._machine import may_fork_safely

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# As a loader does that is the first to start the server, which serves all tests: processes need
# not import torch for seconds because another kind of test came first.
multiprocessing.set_forkserver_preload(["__main__", *PRELOADED])

_SETTLE_SECONDS = 3.0  # a loaded machine takes its time to reap a worker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run last what leaves threads behind: with them alive, loaders do not fork any more."""
    items.sort(key=lambda item: item.get_closest_marker("library_threads") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep thousands of tests and their modules out of the garbage collections to come.

    Tests ask for several hundred of these, each of which would look at everything.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _random_state_restored(global_random_state: None) -> None:
    """Undo what a test does to the global generators."""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT be KeyboardInterrupt, and look whether it is so afterwards.

    A shell without job control has what it starts in the background ignore interrupts.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert after is signal.default_int_handler


@pytest.fixture(autouse=True)
def _loaders_still_fork(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail if a test leaves threads behind that have every later loader start its workers anew.

    Each of them would import torch, for seconds; such tests are marked, and so run last.
    """
    is_marked = request.node.get_closest_marker("library_threads") is not None
    could_fork = may_fork_safely()
    yield
    if is_marked or not could_fork:
        return
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not may_fork_safely() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert may_fork_safely(), "threads live on: end them, or mark the test with library_threads"


@pytest.fixture(autouse=True)
def _threads_of_zarr_ended(_loaders_still_fork: None) -> Iterator[None]:
    """End the threads of zarr's event loop, because of which later tests would not fork."""
    yield
    sync = sys.modules.get("zarr.core.sync")
    if sync is not None and sync.loop[0] is not None:
        sync.cleanup_resources()


@pytest.fixture
def no_leaks() -> Iterator[Callable[[], None]]:
    """Fail if the test leaves a child process, thread, descriptor or memory file behind.

    The fixture gives a function that checks at once, for a test that checks midway.
    """
    before = _held()

    def check() -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (left := _held() - before) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.02)
        assert not left, "left behind: " + ", ".join(sorted(left))

    yield check
    check()


def _held() -> set[str]:
    """Describe everything this process holds that a test should give back."""
    return {*_children(), *_threads(), *_descriptors(), *_mapped_memory_files()}


def _children() -> set[str]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
        except psutil.Error:
            continue  # gone, or a zombie about to be reaped
        # These two live as long as the interpreter and serve all tests.
        if "multiprocessing.forkserver" in command or "resource_tracker" in command:
            continue
        found.add(f"process {child.pid} ({command or 'ended, not reaped'})")
    return found


def _threads() -> set[str]:
    return {f"thread {thread.ident} ({thread.name})" for thread in threading.enumerate()}


def _descriptors() -> set[str]:
    folder = Path("/proc/self/fd")
    if sys.platform != "linux" or not folder.exists():
        return set()
    server = multiprocessing.forkserver._forkserver
    kept = {server._forkserver_alive_fd, multiprocessing.resource_tracker._resource_tracker._fd}
    found = set()
    for descriptor in folder.iterdir():
        if int(descriptor.name) in kept:
            continue
        try:
            found.add(f"descriptor {descriptor.name} ({descriptor.readlink()})")
        except OSError:
            continue  # the one that lists the folder
    return found


def _mapped_memory_files() -> set[str]:
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists():
        return set()
    lines = maps.read_text(encoding="utf-8").splitlines()
    return {f"mapping {line}" for line in lines if "/memfd:" in line or "/dev/shm/" in line}


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory be locked where there is nothing to lock it for."""

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def empty(self, *shape: int, pin_memory: bool, **options: Any) -> torch.Tensor:
            assert pin_memory
            return torch.empty(*shape, **options)

    monkeypatch.setattr("fastloader.sampling._uploaded.torch", Torch())


@pytest.fixture
def resident_here(unpinned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU be the device on which data may reside: a loader knows it by no name."""
    monkeypatch.setattr(
        "fastloader.epochs._epoch.device_of", lambda _loader: torch.device("cpu")
    )


@pytest.fixture
def nothing_shares_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget that other tests have used Accelerate in this process."""
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)


@pytest.fixture
def as_rank(
    monkeypatch: pytest.MonkeyPatch, nothing_shares_yet: None
) -> Callable[[int, int], None]:
    """Be the first of two ranks, or what the returned function is called with."""

    def become(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    become(0, 2)
    return become
