"""What a loader measures of itself while it is used."""

from fastloader.stats._batch_size import count_batch_bytes, count_samples
from fastloader.stats._log import log_stats
from fastloader.stats._pass_tally import PassTally, note_nothing
from fastloader.stats._recorder import LoaderStats
from fastloader.stats._snapshot import SourceShare, StatsSnapshot, WorkerShare
from fastloader.stats._sources import CountsSources, SourceCount, subtract_counts
from fastloader.stats._timed_iterator import queue_of, timed

__all__ = [
    "CountsSources",
    "LoaderStats",
    "PassTally",
    "SourceCount",
    "SourceShare",
    "StatsSnapshot",
    "WorkerShare",
    "count_batch_bytes",
    "count_samples",
    "log_stats",
    "note_nothing",
    "queue_of",
    "subtract_counts",
    "timed",
]
