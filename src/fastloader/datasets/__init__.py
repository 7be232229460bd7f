"""Datasets and picklable wrappers around any dataset."""

from fastloader.datasets._wrapper import DatasetWrapper

__all__ = ["DatasetWrapper"]
