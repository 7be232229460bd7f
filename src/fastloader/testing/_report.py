"""What was checked, and what came out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fastloader.errors import DatasetCheckError

__all__ = ["Check", "DatasetReport", "FailedError", "SkippedError", "run_check"]


class FailedError(Exception):
    """A check has found something wrong; the message says what and where."""


class SkippedError(Exception):
    """A check does not apply; the message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    outcome: Literal["ok", "failed", "skipped"]
    detail: str
    """What was measured, or what is wrong and where."""


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """All checks of one dataset; print it."""

    dataset: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "failed" for check in self.checks)

    def raise_if_failed(self) -> None:
        """Raise unless all is well.

        Raises:
            DatasetCheckError: With the whole report, if a check failed.
        """
        if not self.ok:
            raise DatasetCheckError(str(self))

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [
            f"  {check.outcome:7}  {check.name:{width}}  {check.detail}"
            for check in self.checks
        ]
        return "\n".join([self.dataset, *lines])


def run_check(name: str, check: Callable[[], str]) -> Check:
    """Run a check and note what came out, whatever it raises.

    Args:
        name: What is checked.
        check: Returns what was measured, or raises.
    """
    try:
        return Check(name, "ok", check())
    except SkippedError as reason:
        return Check(name, "skipped", str(reason))
    except FailedError as fault:
        return Check(name, "failed", str(fault))
    except Exception as error:  # noqa: BLE001 - the dataset may raise anything
        return Check(name, "failed", f"{type(error).__name__}: {error}")
