"""Contracts to test your own classes against."""

from fastloader.testing._dataset import check_dataset
from fastloader.testing._report import Check, DatasetReport

__all__ = ["Check", "DatasetReport", "check_dataset"]
