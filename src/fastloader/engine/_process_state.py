"""What has been set in the consumer's process, for workers that a fork would have given it."""

import logging
import os
import pickle
import resource
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["ProcessState"]


@dataclass(frozen=True)
class ProcessState:
    """Environment and settings of a process.

    A fork server passes on what was set when it was started, which may be long ago; working
    directory, ``sys.path`` and ``sys.argv`` are passed on by `multiprocessing` itself.

    **Processes:** read by the consumer, restored in each worker before the dataset is loaded.
    """

    environment: Mapping[str, str]
    warning_filters: tuple[Any, ...]
    """Those that can be pickled."""
    recursion_limit: int
    file_limits: tuple[int, int]
    """Of open files, soft and hard."""
    cpus: frozenset[int] | None
    """Those that the process may use; None where the system does not tell."""
    numpy_errors: Mapping[str, Any]
    default_dtype: torch.dtype
    default_device: torch.device
    is_grad_enabled: bool
    is_deterministic: bool
    """Whether torch is to use deterministic algorithms..."""
    only_warns: bool
    """... or to warn where there is none."""
    log_levels: Mapping[str | None, int]
    """Of the loggers by their names; None is the root."""
    log_formats: tuple[tuple[int, logging.Formatter | None], ...]
    """Level and format of each handler of the root logger that writes to standard error."""

    @classmethod
    def read(cls) -> "ProcessState":
        """Return what is set in this process."""
        has_affinity = hasattr(os, "sched_getaffinity")
        return cls(
            environment=dict(os.environ),
            warning_filters=tuple(filter(_is_picklable, warnings.filters)),
            recursion_limit=sys.getrecursionlimit(),
            file_limits=resource.getrlimit(resource.RLIMIT_NOFILE),
            cpus=frozenset(os.sched_getaffinity(0)) if has_affinity else None,
            numpy_errors=np.geterr(),
            default_dtype=torch.get_default_dtype(),
            default_device=torch.get_default_device(),
            is_grad_enabled=torch.is_grad_enabled(),
            is_deterministic=torch.are_deterministic_algorithms_enabled(),
            only_warns=torch.is_deterministic_algorithms_warn_only_enabled(),
            log_levels=_log_levels(),
            log_formats=tuple(
                (handler.level, handler.formatter)
                for handler in logging.getLogger().handlers
                if _writes_to_stderr(handler) and _is_picklable(handler.formatter)
            ),
        )

    def restore(self) -> None:
        """Set the same in this process, a worker."""
        if os.environ != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)
        warnings.resetwarnings()
        warnings.filters.extend(self.warning_filters)  # type: ignore[attr-defined]  # a list
        sys.setrecursionlimit(self.recursion_limit)
        with suppress(ValueError, OSError):  # not allowed to this process
            resource.setrlimit(resource.RLIMIT_NOFILE, self.file_limits)
            if self.cpus is not None:
                os.sched_setaffinity(0, self.cpus)
        np.seterr(**self.numpy_errors)
        self._restore_torch()
        self._restore_logging()

    def _restore_torch(self) -> None:
        torch.set_default_dtype(self.default_dtype)
        if torch.get_default_device() != self.default_device:
            torch.set_default_device(self.default_device)
        torch.set_grad_enabled(self.is_grad_enabled)
        found = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        # The call imports torch's compiler first, which takes two seconds.
        if found != (self.is_deterministic, self.only_warns):
            torch.use_deterministic_algorithms(self.is_deterministic, warn_only=self.only_warns)

    def _restore_logging(self) -> None:
        for name, level in self.log_levels.items():
            logging.getLogger(name).setLevel(level)
        root = logging.getLogger()
        if root.handlers:  # set by a module that the worker has imported
            return
        for level, formatter in self.log_formats:
            handler = logging.StreamHandler()
            handler.setLevel(level)
            handler.setFormatter(formatter)
            root.addHandler(handler)


def _log_levels() -> dict[str | None, int]:
    loggers = logging.Logger.manager.loggerDict.items()
    levels: dict[str | None, int] = {
        name: logger.level
        for name, logger in loggers
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
    }
    return {None: logging.getLogger().level, **levels}


def _writes_to_stderr(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream is sys.stderr


def _is_picklable(value: object) -> bool:
    # By another process: nothing of a script that this one runs, which may be only half imported.
    try:
        return b"__main__" not in pickle.dumps(value)
    except Exception:  # noqa: BLE001 - whatever a class of the user's raises
        return False
