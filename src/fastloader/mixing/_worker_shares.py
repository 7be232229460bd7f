"""Divides one budget of workers among the sources that need some."""

from collections.abc import Sequence

__all__ = ["share_workers"]


def share_workers(
    budget: int, needs: Sequence[int | None], weights: Sequence[float]
) -> list[int]:
    """Return the workers of each source, no more than the budget in all.

    Workers go one by one to the source whose share is least covered by those it has, so that
    each that needs some gets one before any gets more than its share.

    Args:
        budget: Workers in all, 0 or more.
        needs: The most that each source can use; None for any number.
        weights: Share of each source in the batches, 0 or more.

    Returns:
        Workers of each source.
    """
    shares = [0] * len(needs)
    for _ in range(budget):
        wanting = [
            source
            for source, need in enumerate(needs)
            if weights[source] > 0 and (need is None or shares[source] < need)
        ]
        if not wanting:
            break
        neediest = min(wanting, key=lambda n: (shares[n] > 0, shares[n] / weights[n], n))
        shares[neediest] += 1
    return shares
