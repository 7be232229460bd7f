"""The ways to start a process, where what a spawned one gets is what forkserver's gets, too."""

import multiprocessing

import pytest

START_METHODS = [  # a spawned process takes seconds to import torch
    pytest.param(method, marks=[pytest.mark.slow] if method == "spawn" else [])
    for method in multiprocessing.get_all_start_methods()
]
