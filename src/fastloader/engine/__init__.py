"""Runs fetch and collate: in this process or in worker processes."""

from fastloader.engine._fetch import FetchPlan, SkippedSample
from fastloader.engine._inprocess import BatchMaker, InProcessRun
from fastloader.engine._merged import MergedRun
from fastloader.engine._pool import PoolOptions, WorkerPool
from fastloader.engine._run import PoolRun
from fastloader.engine._run_options import RunOptions

__all__ = [
    "BatchMaker",
    "FetchPlan",
    "InProcessRun",
    "MergedRun",
    "PoolOptions",
    "PoolRun",
    "RunOptions",
    "SkippedSample",
    "WorkerPool",
]
