"""What the workers of a loader, or its own process, are to read and how."""

from typing import Any

from torch.utils.data import IterableDataset, default_collate

from fastloader.datasets._batched import as_batched
from fastloader.engine import FetchPlan
from fastloader.inspection._plain_code import has_plain_collate, is_plain, is_plain_stream

__all__ = ["leaves_nothing", "may_be_read_anew", "plan_of"]


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


def leaves_nothing(plan: FetchPlan) -> bool:
    """Tell whether nobody could tell afterwards which process has made a batch.

    No code of the user's runs but that which reads single samples, and that is plain.
    """
    return (
        plan.calls_only_dataset
        and plan.batched is None
        and not plan.is_iterable
        and plan.on_error == "raise"
        and has_plain_collate()
        and is_plain(plan.dataset)
    )


def may_be_read_anew(plan: FetchPlan) -> bool:
    """Tell whether a stream can be read from its start again, in any process, with the same result."""
    return (
        plan.is_iterable
        and plan.calls_only_dataset
        and plan.on_error == "raise"
        and has_plain_collate()
        and is_plain_stream(plan.dataset)
    )
