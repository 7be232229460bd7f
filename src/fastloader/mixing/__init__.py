"""Mixes several datasets or loaders, in exact shares and a schedule that can be resumed."""

from fastloader.mixing._batch_sampler import MixedBatchSampler
from fastloader.mixing._loader import MixedLoader

__all__ = ["MixedBatchSampler", "MixedLoader"]
