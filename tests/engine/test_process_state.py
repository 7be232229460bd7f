"""Workers that stand for forked ones find the process as it is set, not as it was once."""

import logging
import multiprocessing
import os
import sys
import threading
import warnings

import numpy as np
import pytest
import torch

from fastloader import FastLoader
from fastloader.engine._process_state import ProcessState


class Settings(torch.utils.data.Dataset):
    """Gives what it finds in its process."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        with warnings.catch_warnings(record=True) as told:
            warnings.warn("of samples", UserWarning, stacklevel=1)
        return (
            os.environ.get("SCANS"),
            "HOME" in os.environ,
            len(told),
            sys.getrecursionlimit(),
            np.geterr()["divide"],
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            logging.getLogger("scans").level,
        )


@pytest.fixture
def altered(monkeypatch):
    """A process in which much has been set."""
    monkeypatch.setenv("SCANS", "/data/scans")
    monkeypatch.delenv("HOME", raising=False)
    limit, level = sys.getrecursionlimit(), logging.getLogger("scans").level
    sys.setrecursionlimit(limit + 321)
    logging.getLogger("scans").setLevel(17)
    torch.set_default_dtype(torch.float64)
    try:
        with (
            warnings.catch_warnings(),
            np.errstate(divide="raise"),
            torch.no_grad(),
        ):
            warnings.filterwarnings("ignore", "of samples")
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        logging.getLogger("scans").setLevel(level)
        sys.setrecursionlimit(limit)


def test_a_state_is_restored_as_it_was_read(altered):
    state = ProcessState.read()
    os.environ["SCANS"] = "elsewhere"
    os.environ["MORE"] = "1"
    np.seterr(divide="ignore")
    warnings.filterwarnings("error", "of samples")
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float16)
    torch.use_deterministic_algorithms(True, warn_only=True)
    logging.getLogger("scans").setLevel(5)

    state.restore()

    assert ProcessState.read() == state
    assert not torch.are_deterministic_algorithms_enabled()


def test_torchs_compiler_is_not_imported_for_what_is_set_already(monkeypatch):
    def compiler_imported(*_, **__):
        pytest.fail("torch imports its compiler for this call")

    monkeypatch.setattr(torch, "use_deterministic_algorithms", compiler_imported)

    ProcessState.read().restore()


def test_lines_of_logs_are_written_as_in_the_consumer(monkeypatch, capsys):
    root = logging.getLogger()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(message)s"))
    monkeypatch.setattr(root, "handlers", [handler])
    state = ProcessState.read()
    monkeypatch.setattr(root, "handlers", [])

    state.restore()
    logging.getLogger("scans").warning("read")

    assert capsys.readouterr().err == "WARNING:read\n"


def test_warning_filters_of_the_main_script_are_left_out():
    class Told(UserWarning):
        pass

    Told.__module__ = "__main__"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Told)
        filters = ProcessState.read().warning_filters

    assert filters
    assert Told not in {one[2] for one in filters}


@pytest.mark.multiprocess
@pytest.mark.skipif(
    multiprocessing.get_start_method() != "fork", reason="nothing stands for a fork"
)
def test_workers_of_a_loader_that_must_not_fork_find_what_was_set_since(request):
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        loader = FastLoader(Settings(), 1, num_workers=1, collate_fn=list)
        assert loader.multiprocessing_context.get_start_method() == "forkserver"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            list(loader)  # the server runs from here on
        request.getfixturevalue("altered")
        [found], _ = FastLoader(Settings(), 1, num_workers=1, collate_fn=list)
        assert found == Settings()[0]
    finally:
        over.set()
        other.join()
