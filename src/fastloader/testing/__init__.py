"""Contracts to test your own classes against, and what to know of the machine."""

from fastloader.testing._dataset import check_dataset
from fastloader.testing._machine import MachineFinding, MachineReport, check_machine
from fastloader.testing._report import Check, DatasetReport

__all__ = [
    "Check",
    "DatasetReport",
    "MachineFinding",
    "MachineReport",
    "check_dataset",
    "check_machine",
]
