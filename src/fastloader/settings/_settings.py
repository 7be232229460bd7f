"""What a loader runs with, and why: one validated value and one reason per option."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from fastloader.errors import SettingsError

__all__ = ["WITHOUT_WORKERS", "Auto", "LoaderSettings", "Transport", "Workers"]

Auto: TypeAlias = Literal["auto"]
"""Default of the options that the loader chooses by itself."""

Transport: TypeAlias = Literal["shared", "torch"]
"""How batches come from workers: in reused shared memory, or as torch sends them."""


_TRANSPORTS = get_args(Transport)

WITHOUT_WORKERS: Mapping[str, object] = MappingProxyType({
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
})
"""The options that need workers, and what is in force of them where there are none."""

Workers: TypeAlias = Literal["processes", "threads"]
"""What reads samples beside the training loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """The settings in force of a `FastLoader`.

    Raises:
        SettingsError: If the values cannot work together.
    """

    num_workers: int
    """Workers; 0 loads in the calling thread."""
    workers: Workers
    """What workers are."""
    prefetch_factor: int | None
    """Batches that each worker makes ahead; None without workers."""
    persistent_workers: bool
    """Whether workers live on between epochs."""
    multiprocessing_context: str | None
    """Start method of worker processes; None without them."""
    timeout: float
    """Seconds to wait for a batch from a worker; 0 waits for ever."""
    pin_memory: bool
    """Whether batches arrive in page-locked memory."""
    transport: Transport
    """How batches come from workers."""
    in_order: bool
    """Whether batches come in the order of the sampler."""
    device: str | None
    """Where batches arrive; None leaves them as they were made."""
    resident: str | None
    """``"device"`` if the data is kept on the device; None if it is copied batch by batch."""
    batched: bool
    """Whether the dataset makes whole batches in one call."""
    reasons: Mapping[str, str]
    """Why each of the values above is what it is, by field name."""
    ignored: tuple[str, ...] = ()
    """Options that the caller gave and that have no effect, as ``name=value``."""

    def __post_init__(self) -> None:
        # A read-only copy: two loaders must not share a mapping that one of them edits.
        object.__setattr__(self, "reasons", MappingProxyType(dict(self.reasons)))
        if self.num_workers < 0:
            raise SettingsError(
                "num_workers option should be non-negative; use num_workers=0 to load in "
                f"the calling process. Got num_workers={self.num_workers}."
            )
        if self.timeout < 0:
            raise SettingsError(
                f"timeout option should be non-negative, but got timeout={self.timeout}."
            )
        if self.transport not in _TRANSPORTS:
            raise SettingsError(
                f"transport should be 'auto', 'shared' or 'torch', but got {self.transport!r}."
            )
        self._check_worker_options()
        if not self.reasons.keys() >= _NAMES:
            missing = sorted(_NAMES - self.reasons.keys())
            raise SettingsError(f"Each setting needs a reason, but {missing} have none.")

    def _check_worker_options(self) -> None:
        if self.num_workers == 0:
            wrong = [
                name
                for name, value in WITHOUT_WORKERS.items()
                if getattr(self, name) not in {value, None}
            ]
            if wrong:
                raise SettingsError(
                    f"{', '.join(wrong)} need workers, but num_workers is 0: leave them out, "
                    "or set num_workers to 1 or more."
                )
        elif self.prefetch_factor is None or self.prefetch_factor < 1:
            raise SettingsError(
                "prefetch_factor option should be non-negative and, with workers, at least 1, "
                f"but got prefetch_factor={self.prefetch_factor}."
            )

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled.
        return _restore, ({**self._values(), "reasons": dict(self.reasons)}, self.ignored)

    def _values(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in _NAMES}

    def with_values(self, values: Mapping[str, object], reason: str) -> "LoaderSettings":
        """Return the settings with other values.

        Args:
            values: By field name; those that are in force already change nothing.
            reason: Why the others are what they are.
        """
        changed = {
            name: value for name, value in values.items() if value != getattr(self, name)
        }
        if not changed:
            return self
        reasons = {**self.reasons, **dict.fromkeys(changed, reason)}
        return replace(self, **changed, reasons=reasons)  # type: ignore[arg-type]

    def explain(self) -> str:
        """Return a table of option, value and reason as text."""
        rows = [
            (name, str(value), self.reasons[name]) for name, value in self._values().items()
        ]
        rows += [("ignored", given, "has no effect without workers") for given in self.ignored]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{name:<{widths[0]}}  {value:<{widths[1]}}  {reason}"
            for name, value, reason in rows
        )


_NAMES = dict.fromkeys(
    field.name for field in fields(LoaderSettings) if field.name not in {"reasons", "ignored"}
).keys()
"""Of the settings themselves, in order."""


def _restore(values: dict[str, object], ignored: tuple[str, ...]) -> LoaderSettings:
    return LoaderSettings(**values, ignored=ignored)  # type: ignore[arg-type]
