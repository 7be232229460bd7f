"""Streams of batches in, streams of batches out."""

from fastloader.stages._device import DeviceStream
from fastloader.stages._pinned import PinnedStream
from fastloader.stages._stream import BatchStream
from fastloader.stages._tree import map_tensors

__all__ = ["BatchStream", "DeviceStream", "PinnedStream", "map_tensors"]
