"""Warns of iterable datasets that several workers read, each its own share."""

import warnings

__all__ = ["warn_of_drops", "warn_of_repeats"]


def warn_of_repeats(num_workers: int) -> None:
    """Say that workers read the same samples, because the dataset did not ask who reads.

    Args:
        num_workers: That read it; one cannot repeat anything.
    """
    if num_workers == 1:
        return
    warnings.warn(
        f"The iterable dataset does not ask which worker it is in, so each of the {num_workers} "
        f"workers gives all of its samples: an epoch has every sample {num_workers} times. Split "
        "the samples by torch.utils.data.get_worker_info(), or set num_workers=1.",
        stacklevel=3,
    )


def warn_of_drops(num_dropped: int, num_workers: int) -> None:
    """Say how many samples `drop_last` left out at the ends of the workers' shares.

    Args:
        num_dropped: Samples; nothing is said of none.
        num_workers: One loses no more than the caller asked for.
    """
    if not num_dropped or num_workers == 1:
        return
    warnings.warn(
        f"drop_last=True dropped {num_dropped} samples, the incomplete last batches of "
        f"{num_workers} workers: use fewer workers to lose fewer.",
        stacklevel=3,
    )
