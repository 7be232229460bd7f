"""How workers start, decided when somebody asks: it depends on the threads that are alive then."""

import multiprocessing
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from fastloader.settings._choice import Choice

__all__ = ["LateContext"]

T_co = TypeVar("T_co", covariant=True)


class LateContext(DataLoader[T_co]):
    """Chooses its `multiprocessing_context` when that is first read.

    To count threads takes longer than to choose all other settings, and most loaders that are made
    are read to their end without a worker. Set `_choice` first.
    """

    _choice: Choice
    _has_open_context = False
    """Whether it is ours to choose: nobody has given one."""

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
        of_next_class: Any = super(LateContext, type(self)).multiprocessing_context
        of_next_class.__set__(self, context)
