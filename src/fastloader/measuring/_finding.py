"""One cause of slow loading, and what to write against it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["HOLDS_BACK", "LARGE_BYTES", "Cause", "Finding"]

Cause: TypeAlias = Literal[
    "too_few_workers",
    "too_many_workers",
    "sample_cost",
    "slow_samples",
    "collate",
    "batch_transform",
    "device_transform",
    "sampler",
    "storage",
    "contention",
    "transport",
    "pinning",
    "copy",
    "epoch_gap",
    "cpu_oversubscription",
    "busy_cpus",
    "unexplained",
]

HOLDS_BACK = 0.3
"""Share of the loop's time spent waiting from which on loading is reported as slow."""
LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of slow loading."""

    cause: Cause
    cost_share: float
    """Of the loop's time that it takes, from 0 to 1, as far as that can be told."""
    text: str
    """What was seen."""
    remedy: str
    """The argument to write, or what else to do."""
