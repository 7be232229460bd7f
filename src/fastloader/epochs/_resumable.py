"""A DataLoader that knows its epochs and can go on from the middle of one."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from torch.utils.data import DataLoader

from fastloader._torch_internals import reads_otherwise
from fastloader.epochs._epochs import Epochs
from fastloader.errors import ResumeError
from fastloader.settings._given import as_epoch
from fastloader.settings._traits import is_data_pipe

__all__ = ["ResumableLoader"]

T_co = TypeVar("T_co", covariant=True)


class ResumableLoader(DataLoader[T_co]):
    """Counts passes as epochs and tells where its consumer is, in torchdata's terms.

    Set `_epochs` and `transport` before anything else is asked of it.
    """

    transport: str
    _epochs: Epochs

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass reads; the passes after it count on from there.

        Nobody has to: each pass is the next epoch by itself. The sampler, the sampler of the
        batch sampler, the dataset, what it wraps and its copies in workers are told, as far as
        they have a method of this name. A framework or user who calls ``set_epoch`` of the
        sampler or dataset instead, where it keeps the number as ``epoch``, is followed.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            SettingsError: If `epoch` is negative or no whole number.
        """
        self._epochs.set_epoch(self, as_epoch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest pass is, to go on from there later.

        Batches that the consumer has got count; those made ahead are made again. After the last
        batch, but before the end of the loop, nothing of the epoch is left; after the loop the
        state is that before the next epoch. The names and the meaning are those of torchdata's
        `StatefulDataLoader`.

        With map-style data, what is left is the same for any number of workers, and for
        another batch size or number of ranks where sampler and batch sampler are torch's or
        `fastloader.sampling`'s. An iterable dataset and a sampler are asked for their own
        ``state_dict``, if they have one: the dataset in its workers, after each batch.

        Returns:
            Strings, numbers, lists and dictionaries, besides what datasets and samplers
            return; it can be pickled, and saved by `torch.save`.

        Raises:
            ResumeError: If batches come in torch's own way, which cannot be resumed
                (``transport="torch"``, data pipes, subclasses with an ``_index_sampler`` or ``_auto_collation``).
        """
        if self._iterates_otherwise():
            return cast("dict[str, Any]", self._state_of_other("state_dict")())
        return self._epochs.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on from a saved state; samples before it are not read.

        Args:
            state_dict: From `state_dict` of a loader made with the same dataset and options.

        Raises:
            ResumeError: If this loader cannot go on from it.
        """
        if self._iterates_otherwise():
            self._state_of_other("load_state_dict")(state_dict)
        else:
            self._epochs.load_state_dict(self, state_dict)

    def _iterates_otherwise(self) -> bool:
        """Return whether batches come from the iterators of the next class, not from ours.

        That is torch's, or that of a loader which a class is made of besides this one, as in
        ``class Both(FastLoader, StatefulDataLoader)``: who writes that wants the iterators of
        the other.
        """
        return self._reason_of_other() is not None

    def _reason_of_other(self) -> str | None:
        return self._find_other(self.transport, self.dataset)

    @classmethod
    def _find_other(cls, transport: str, dataset: object) -> str | None:
        """Return whose iterators loaders with such options get, if not ours."""
        if transport == "torch":
            return "torch's own iterators: transport='torch'"
        if is_data_pipe(dataset):
            return "torch's own iterators: the dataset is a data pipe"
        return cls._other_of_class

    _other_of_class: str | None = None
    """Whose iterators all loaders of the class get, if not ours."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        order = cls.__mro__
        other = order[order.index(ResumableLoader) + 1]
        cls._other_of_class = None
        if other is not DataLoader:
            cls._other_of_class = (
                f"the iterators of {other.__name__}, of which the loader is made"
            )
        elif reads_otherwise(cls):
            cls._other_of_class = (
                "torch's own iterators: the class has an _index_sampler or "
                "_auto_collation of its own"
            )

    def _state_of_other(self, name: str) -> Callable[..., Any]:
        method = getattr(super(), name, None)
        if method is None:
            raise ResumeError(
                "The batches of this loader come from torch's own iterators (because of "
                "transport='torch', a data pipe, or an _index_sampler or _auto_collation of its own "
                "class), which cannot tell where they are: leave transport out, read a map-style or "
                "iterable dataset, or give a batch_sampler."
            )
        return cast("Callable[..., Any]", method)
