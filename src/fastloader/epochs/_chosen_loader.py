"""A DataLoader with the settings that were chosen for it."""

import multiprocessing
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from fastloader.errors import SettingsError
from fastloader.sampling._given_order import GivenOrder
from fastloader.settings._choice import Choice

__all__ = ["ChosenLoader"]

T_co = TypeVar("T_co", covariant=True)

_CHOSEN = (
    "num_workers",
    "pin_memory",
    "timeout",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
"""Options of torch's that are chosen where they are left out, beside how workers start."""


class ChosenLoader(DataLoader[T_co]):
    """Takes its options from `_choice`, and `multiprocessing_context` when that is first read.

    How workers start depends on the threads that are alive then, and to count these takes longer than to
    choose all other settings: most loaders that are made are read to their end without a worker.
    """

    _choice: Choice
    """Set this before `_init_stock` is called: torch asks whether the number of workers is sound."""
    _has_open_context = False
    """Whether `multiprocessing_context` is ours to choose: nobody has given one."""

    def _init_stock(
        self, order: GivenOrder, multiprocessing_context: Any, **options: Any
    ) -> None:
        """Begin as torch's loader.

        Args:
            order: What the loader reads.
            multiprocessing_context: As the caller wrote it.
            options: Those of torch's that are not chosen.

        Raises:
            SettingsError: If torch refuses an option or a mix of options.
        """
        chosen = self._choice
        is_open = multiprocessing_context == "auto"
        has_given = not is_open and chosen.start_method is not None
        try:
            super().__init__(
                dataset=order.dataset,
                batch_size=order.batch_size,
                shuffle=order.shuffle,
                sampler=order.sampler,
                batch_sampler=order.batch_sampler,
                drop_last=order.drop_last,
                generator=order.generator,
                multiprocessing_context=multiprocessing_context if has_given else None,
                **{name: chosen.of(name) for name in _CHOSEN},
                **options,
            )
        except ValueError as error:
            raise SettingsError(str(error)) from None
        self._has_open_context = is_open

    @property
    def multiprocessing_context(self) -> BaseContext | None:
        """How workers start; None stands for the default of `multiprocessing`."""
        if self._has_open_context:
            method = self._choice.start_method
            is_default = method == self._choice.machine.start_method
            # The default is left to multiprocessing: whoever reads the attribute sees None, as ever.
            if is_default or self.num_workers == 0:
                return None
            chosen: BaseContext = multiprocessing.get_context(method)
            return chosen
        given: BaseContext | None = super().multiprocessing_context
        return given

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: BaseContext | str | None) -> None:
        self._has_open_context = False
        of_next_class: Any = super(ChosenLoader, type(self)).multiprocessing_context
        of_next_class.__set__(self, context)
