"""A check made in a process of its own, which may crash or hang."""

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from fastloader._loader import FastLoader
from fastloader.testing._report import FailedError, SkippedError, run_check

__all__ = ["run_apart"]

_START_SECONDS = 10.0
"""For a process that imports torch on a busy machine."""


def run_apart(check: Callable[[], str], seconds: float, context: Any = "auto") -> str:
    """Make a check in a worker process.

    Args:
        check: As for `run_check`; travels there.
        seconds: How long it may take, once the process has started; that has ten seconds more.
        context: How that is started.

    Returns:
        What was measured.

    Raises:
        FailedError: If something is wrong, or the process has ended or taken too long.
        SkippedError: If the check does not apply.
    """
    loader: FastLoader[Any] = FastLoader(
        _Alone(check),
        batch_size=None,
        num_workers=1,
        persistent_workers=False,
        timeout=_START_SECONDS + seconds,
        multiprocessing_context=context,
    )
    try:
        [(outcome, detail)] = loader
    except Exception as error:
        told = str(error).partition("\n")[0].partition(". ")[0]
        raise FailedError(f"in a process of its own: {type(error).__name__}: {told}") from error
    if outcome == "ok":
        return str(detail)
    raise (SkippedError if outcome == "skipped" else FailedError)(detail)


class _Alone(Dataset[tuple[str, str]]):
    """A single sample: what a check has found."""

    def __init__(self, check: Callable[[], str]) -> None:
        self._check = check

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> tuple[str, str]:
        found = run_check("", self._check)
        return found.outcome, found.detail
