"""The settings of one loader, chosen value by value."""

from functools import cached_property
from typing import Any

from fastloader.machine._machine import Machine
from fastloader.settings._choose import (
    CHOOSERS,
    check_given,
    choose_most_workers,
    choose_num_workers,
    choose_spare_workers,
    explain_growth,
    may_be_placed,
    worker_options,
)
from fastloader.settings._inputs import DatasetTraits, GivenOptions
from fastloader.settings._settings import LoaderSettings

__all__ = ["Choice", "choose_settings"]


class Choice:
    """What a loader runs with, each value chosen when it is first asked for.

    A given value always wins. Where the caller asks for no workers, options that only matter
    with workers have no effect and are listed as ignored, so that a configuration survives
    being debugged without workers. What is not asked for before the first batch is not chosen
    before it: how many other threads there are, say, takes longer to tell than all else.

    Args:
        machine: What the process may use.
        traits: What the dataset is like.
        given: What the caller gave.

    Raises:
        SettingsError: If a given value cannot work.
    """

    def __init__(self, machine: Machine, traits: DatasetTraits, given: GivenOptions) -> None:
        check_given(given)
        self.machine = machine
        self.traits = traits
        self.given = given
        self._found: dict[str, tuple[Any, str]] = {}

    def of(self, name: str) -> Any:
        """Return the value of an option."""
        return self._choose(name)[0]

    def reason_of(self, name: str) -> str:
        """Return why an option has its value."""
        return self._choose(name)[1]

    @cached_property
    def settings(self) -> LoaderSettings:
        """All values and reasons."""
        number, reason = self._choose("num_workers")
        growth = explain_growth(self.machine, self.traits, self.given, number)
        return LoaderSettings(
            num_workers=number,
            **{name: self.of(name) for name in CHOOSERS},
            reasons={
                "num_workers": reason + growth,
                **{name: self.reason_of(name) for name in CHOOSERS},
            },
            ignored=() if self.has_workers else worker_options(self.given),
        )

    @cached_property
    def has_workers(self) -> bool:
        """Whether there are any."""
        return bool(self.of("num_workers") > 0)

    @cached_property
    def most_workers(self) -> int:
        """How many workers there may be while they wait and leave the CPUs idle."""
        return choose_most_workers(
            self.machine, self.traits, self.given, self.of("num_workers")
        )

    @cached_property
    def spare_workers(self) -> int:
        """How many workers may make batches of a dataset that needs none."""
        return choose_spare_workers(self.machine, self.traits, self.given)

    @property
    def may_be_placed(self) -> bool:
        """Whether batches of such a dataset may be made ahead where that is quicker."""
        return may_be_placed(self.traits, self.given)

    @cached_property
    def budget_bytes(self) -> int:
        """Bound of the memory that batches ahead of the consumer may take."""
        return self.machine.available_bytes // (2 * self.machine.local_world_size)

    def _choose(self, name: str) -> tuple[Any, str]:
        found = self._found.get(name)
        if found is None:
            known = self.machine, self.traits, self.given
            if name == "num_workers":
                found = choose_num_workers(*known)
            else:
                found = CHOOSERS[name](*known, self.has_workers)
            self._found[name] = found
        return found


def choose_settings(
    machine: Machine, traits: DatasetTraits, given: GivenOptions
) -> LoaderSettings:
    """Return all that a `Choice` holds.

    Raises:
        SettingsError: If a given value cannot work.
    """
    return Choice(machine, traits, given).settings
