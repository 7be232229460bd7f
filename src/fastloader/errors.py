"""All exceptions of the package.

Each inherits from `FastLoaderError` and from the standard type that a caller would catch::

    FastLoaderError
    ├── SettingsError         ValueError     an option, or a mix of options, that cannot work
    ├── EmptyEpochError       ValueError     an epoch that would have no batch
    ├── ResumeError           ValueError     a saved state that this loader cannot go on from
    ├── ShapeError            ValueError     arrays whose shapes do not fit together
    ├── StatisticsError       ValueError     statistics that do not belong to these images
    ├── SourceError           OSError        a file that cannot be read
    │   └── ImageDataError    + ValueError   pixels or metadata of a row that make no sense
    ├── DestinationError      OSError        a file that cannot be written
    ├── MissingExtraError     ImportError    an optional package that is not installed
    ├── UnpicklableError      TypeError      something that must travel to a worker and cannot
    ├── SharedMemoryError     RuntimeError   shared memory that cannot be had
    ├── WorkerDiedError       RuntimeError   a worker process that ended by itself
    ├── WorkerTimeoutError    RuntimeError   a batch that did not come in time
    ├── TuningError           RuntimeError   a loader that cannot be measured
    ├── BatchSizeError        MemoryError    no batch size whose step fits into memory
    └── DatasetCheckError     AssertionError a dataset that breaks its contract
"""

import sys
from typing import Any

from fastloader._secrets import hide_secrets, hide_secrets_of

__all__ = [
    "BatchSizeError",
    "DatasetCheckError",
    "DestinationError",
    "EmptyEpochError",
    "FastLoaderError",
    "ImageDataError",
    "MissingExtraError",
    "ResumeError",
    "SettingsError",
    "ShapeError",
    "SharedMemoryError",
    "SourceError",
    "StatisticsError",
    "TuningError",
    "UnpicklableError",
    "WorkerDiedError",
    "WorkerTimeoutError",
]


class FastLoaderError(Exception):
    """Base of all errors that this package raises on purpose.

    Passwords and keys in URLs are taken out of its text, and out of the error that is being
    handled when it is made: libraries name the whole URL, and tracebacks show both.
    """

    def __init__(self, *args: Any) -> None:
        """Take the text.

        Args:
            args: As of any exception.
        """
        super().__init__(*(hide_secrets(one) if isinstance(one, str) else one for one in args))
        hide_secrets_of(sys.exception())


class SettingsError(FastLoaderError, ValueError):
    """An option, or a mix of options, cannot work."""


class EmptyEpochError(FastLoaderError, ValueError):
    """An epoch would have no batch at all."""


class ResumeError(FastLoaderError, ValueError):
    """A loader cannot save its state, or cannot go on from a saved one."""


class ShapeError(FastLoaderError, ValueError):
    """Arrays have shapes that do not fit together."""


class StatisticsError(FastLoaderError, ValueError):
    """Statistics cannot be taken, or do not belong to these images."""


class SourceError(FastLoaderError, OSError):
    """A file or table cannot be read."""


class ImageDataError(SourceError, ValueError):
    """Pixels or metadata of a row make no sense; the message names file, column and row."""


class DestinationError(FastLoaderError, OSError):
    """A file or table cannot be written."""


class MissingExtraError(FastLoaderError, ImportError):
    """An optional package is needed; the message has the install command."""


class UnpicklableError(FastLoaderError, TypeError, RuntimeError):
    """An object must travel to or from a worker and cannot; the message names where it is.

    Also a `RuntimeError`, as torch raises for tensors that need gradients.
    """


class SharedMemoryError(FastLoaderError, RuntimeError):
    """Shared memory cannot be had."""


class WorkerDiedError(FastLoaderError, RuntimeError):
    """A worker process ended by itself: killed, crashed or out of memory."""


class WorkerTimeoutError(FastLoaderError, RuntimeError):
    """A batch did not come in time."""


class TuningError(FastLoaderError, RuntimeError):
    """A loader cannot be measured, because its dataset raises, say."""


class BatchSizeError(FastLoaderError, MemoryError):
    """Not even the smallest batch size fits into memory."""


class DatasetCheckError(FastLoaderError, AssertionError):
    """A dataset breaks its contract."""
