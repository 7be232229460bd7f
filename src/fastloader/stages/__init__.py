"""Streams of batches in, streams of batches out."""

from fastloader.stages._cut import CutStream
from fastloader.stages._device import (
    MOST_UNDER_WAY,
    CopySeconds,
    copied_ahead,
    copied_ahead_and_cut,
    copied_to,
    recorded,
    side_stream,
)
from fastloader.stages._locked_pages import lock_pages
from fastloader.stages._pinned import PinnedStream
from fastloader.stages._resident import ResidentStream
from fastloader.stages._stream import BatchStream, HostStream, LostBatchError
from fastloader.stages._tree import map_tensors, move_tensors
from fastloader.stages._waited_copies import has_streams

__all__ = [
    "MOST_UNDER_WAY",
    "BatchStream",
    "CopySeconds",
    "CutStream",
    "HostStream",
    "LostBatchError",
    "PinnedStream",
    "ResidentStream",
    "copied_ahead",
    "copied_ahead_and_cut",
    "copied_to",
    "has_streams",
    "lock_pages",
    "map_tensors",
    "move_tensors",
    "recorded",
    "side_stream",
]
