"""Keeps OpenMP, by which torch divides work on the CPU, to the calling thread."""

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import cast

import torch
from threadpoolctl import ThreadpoolController

__all__ = ["end_teams_before_forks", "limit_openmp", "without_openmp"]


_PAUSE_SOFT = 1  # as the standard numbers it; what was set stays


def without_openmp() -> AbstractContextManager[object]:
    """Let what this thread calls in the block run in this thread alone.

    OpenMP's threads spin while they wait for each other. Where a core is taken by somebody else,
    a call that takes 0.2 ms then takes 20. Other threads keep theirs, unlike with
    `torch.set_num_threads`.
    """
    torch.get_num_threads()  # at its first call torch sets OpenMP's number for this thread
    return cast(
        "AbstractContextManager[object]", _libraries().limit(limits=1, user_api="openmp")
    )


def limit_openmp(num_threads: int) -> None:
    """Let what this thread calls from now on use fewer threads; torch's own number stays.

    Args:
        num_threads: At most, this one included.
    """
    torch.get_num_threads()  # as above
    _libraries().limit(limits=num_threads, user_api="openmp")


@cache
def end_teams_before_forks() -> None:
    """Let forked children compute by OpenMP, from now on and for good; for who uses it unasked.

    GNU's library keeps a team of threads for each thread that has used it. A child inherits the
    forking thread's in name only, and waits for it forever in the first large operation of torch. So
    before a fork that team is ended; it starts anew with the next one in the parent.
    """
    pauses = [
        library.dynlib.omp_pause_resource_all
        for library in _libraries().select(user_api="openmp").lib_controllers
        if library.prefix == "libgomp" and hasattr(library.dynlib, "omp_pause_resource_all")
    ]

    def end_teams() -> None:
        for pause in pauses:
            pause(_PAUSE_SOFT)

    if pauses:
        os.register_at_fork(before=end_teams)


@cache
def _libraries() -> ThreadpoolController:
    # Looking for them takes milliseconds; the OpenMP of torch is there from its import on.
    return ThreadpoolController()
