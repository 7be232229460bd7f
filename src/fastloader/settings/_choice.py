"""The settings of one loader, chosen value by value."""

from functools import cached_property
from typing import Any

from fastloader.machine._machine import Machine
from fastloader.settings._choose import choose_options
from fastloader.settings._choose_workers import (
    choose_most_workers,
    choose_num_workers,
    choose_spare_workers,
    choose_start_method,
    explain_growth,
    may_be_placed,
)
from fastloader.settings._given import check_given, worker_options
from fastloader.settings._inputs import DatasetTraits, GivenOptions
from fastloader.settings._settings import LoaderSettings

__all__ = ["Choice"]


class Choice:
    """What a loader runs with.

    A given value always wins. Where the caller asks for no workers, options that only matter
    with workers have no effect and are listed as ignored, so that a configuration survives
    being debugged without workers. What takes long to tell is chosen when it is first asked for: how
    many other threads there are, say.

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
        number = choose_num_workers(machine, traits, given)
        self.has_workers = number[0] > 0
        """Whether there are any."""
        self._found = choose_options(machine, traits, given, self.has_workers)
        self._found["num_workers"] = number

    def of(self, name: str) -> Any:
        """Return the value of an option other than the start method."""
        return self._found[name][0]

    def reason_of(self, name: str) -> str:
        """Return why such an option has its value."""
        return self._found[name][1]

    @property
    def start_method(self) -> str | None:
        """How workers start."""
        return self._start_method[0]

    @cached_property
    def _start_method(self) -> tuple[str | None, str]:
        return choose_start_method(self.machine, self.given, self.has_workers)

    @cached_property
    def settings(self) -> LoaderSettings:
        """All values and reasons."""
        found = {**self._found, "multiprocessing_context": self._start_method}
        number, reason = found["num_workers"]
        growth = explain_growth(self.machine, self.traits, self.given, number)
        found["num_workers"] = number, reason + growth
        return LoaderSettings(
            **{name: value for name, (value, _) in found.items()},
            reasons={name: reason for name, (_, reason) in found.items()},
            ignored=() if self.has_workers else worker_options(self.given),
        )

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
    def automatic_workers(self) -> int | None:
        """The number of workers where it is chosen here, and so may be changed; None where it was given."""
        is_automatic = self.given.num_workers == "auto" and self.given.measured is None
        return self.of("num_workers") if is_automatic else None

    @property
    def is_persistence_automatic(self) -> bool:
        """Whether nobody has said whether workers live on."""
        return self.given.persistent_workers == "auto"

    @property
    def is_prefetch_automatic(self) -> bool:
        """Whether nobody has said how many batches are made ahead."""
        return self.given.prefetch_factor in {"auto", None} and self.given.suggested is None

    @property
    def may_fork(self) -> bool:
        """Whether workers may be forked where another start method was chosen and cannot work."""
        return (
            self.given.multiprocessing_context == "auto"
            and self.machine.start_method == "fork"
            and self.machine.fork_hazard is None
        )

    @property
    def may_be_placed(self) -> bool:
        """Whether batches of such a dataset may be made ahead where that is quicker."""
        return may_be_placed(self.traits, self.given)

    @cached_property
    def budget_bytes(self) -> int:
        """Bound of the memory that batches ahead of the consumer may take."""
        return self.machine.available_bytes // (2 * self.machine.local_world_size)
