"""What a loader measures of itself while it is used."""

from fastloader.stats._batch_size import count_batch_bytes, count_samples
from fastloader.stats._log import log_stats
from fastloader.stats._pass_tally import PassTally
from fastloader.stats._recorder import LoaderStats
from fastloader.stats._snapshot import StatsSnapshot, WorkerShare
from fastloader.stats._timed_iterator import timed

__all__ = [
    "LoaderStats",
    "PassTally",
    "StatsSnapshot",
    "WorkerShare",
    "count_batch_bytes",
    "count_samples",
    "log_stats",
    "timed",
]
