"""Runs fetch and collate: in this process, in worker processes or in threads."""

from fastloader.engine._fetch import FetchPlan, SkippedSample
from fastloader.engine._inprocess import InProcessRun
from fastloader.engine._pool import PoolOptions, WorkerPool
from fastloader.engine._run import PoolRun, RunOptions

__all__ = [
    "FetchPlan",
    "InProcessRun",
    "PoolOptions",
    "PoolRun",
    "RunOptions",
    "SkippedSample",
    "WorkerPool",
]
