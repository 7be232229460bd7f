"""What the workers of a loader, or its own process, are to read and how."""

from typing import Any

from torch.utils.data import IterableDataset, default_collate

from fastloader.datasets._batched import as_batched
from fastloader.engine import FetchPlan

__all__ = ["plan_of"]


def plan_of(loader: Any) -> FetchPlan:
    """Return the plan of a loader, from its options as they are now."""
    has_batches = loader.batch_sampler is not None
    default = has_batches and loader.collate_fn is default_collate
    return FetchPlan(
        dataset=loader.dataset,
        is_iterable=isinstance(loader.dataset, IterableDataset),
        auto_collation=has_batches,
        collate_fn=loader.collate_fn,
        drop_last=loader.drop_last,
        batched=as_batched(loader.dataset) if default else None,
        on_error=loader.on_error,
        batch_transform=loader.batch_transform,
    )
