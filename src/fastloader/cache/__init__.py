"""Decoded images that all workers of a machine share."""

from fastloader.cache._packed import PackedImages

__all__ = ["PackedImages"]
