"""Runs fetch and collate: in this process, in worker processes or in threads."""

from fastloader.engine._ahead_run import AheadRun
from fastloader.engine._counters import RunCounters
from fastloader.engine._delivery import Deliveries, Delivery, UncutDeliveries
from fastloader.engine._fetch import FetchPlan, SkippedSample
from fastloader.engine._head_start import Forecast
from fastloader.engine._inprocess import BatchMaker, InProcessRun
from fastloader.engine._merged import (
    MERGED_BYTES,
    RESIDENT_SHARE,
    MergedRun,
    RowBytes,
    merged_bytes_on,
)
from fastloader.engine._placed_run import PlacedRun, Run
from fastloader.engine._placement import Place, Placement
from fastloader.engine._pool import WorkerPool
from fastloader.engine._pool_options import PoolOptions
from fastloader.engine._run import PoolRun
from fastloader.engine._run_options import RunOptions
from fastloader.engine._stream_point import PackedPoint, StreamPoint, unpack_point
from fastloader.engine._stream_run import StreamRun
from fastloader.engine._thread_run import ThreadOptions, ThreadRun
from fastloader.engine._thread_workers import ThreadSetup

__all__ = [
    "MERGED_BYTES",
    "RESIDENT_SHARE",
    "AheadRun",
    "BatchMaker",
    "Deliveries",
    "Delivery",
    "FetchPlan",
    "Forecast",
    "InProcessRun",
    "MergedRun",
    "PackedPoint",
    "Place",
    "PlacedRun",
    "Placement",
    "PoolOptions",
    "PoolRun",
    "RowBytes",
    "Run",
    "RunCounters",
    "RunOptions",
    "SkippedSample",
    "StreamPoint",
    "StreamRun",
    "ThreadOptions",
    "ThreadRun",
    "ThreadSetup",
    "UncutDeliveries",
    "WorkerPool",
    "merged_bytes_on",
    "unpack_point",
]
