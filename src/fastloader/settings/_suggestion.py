"""What to take for the options that a caller leaves open."""

from typing import Any, Literal

from fastloader.errors import SettingsError
from fastloader.machine._machine import Machine
from fastloader.settings._settings import Auto, LoaderSettings
from fastloader.settings._tuned_results import load_result, result_path

__all__ = ["find_suggestion"]

_NOTHING_STORED = (
    "no result of fastloader.tune is stored for this dataset, batch size and machine"
)


def find_suggestion(
    settings: LoaderSettings | Literal["tuned"] | Auto,
    dataset: Any,
    batch_size: int | None,
    machine: Machine,
) -> LoaderSettings | str | None:
    """Return the settings that were given or stored, or why there are none.

    Args:
        settings: As the caller wrote it.
        dataset: Of the loader.
        batch_size: Of the loader.
        machine: What the process may use.

    Returns:
        Settings; the reason why none were found; None if nobody asked for any.

    Raises:
        SettingsError: If `settings` is none of what it may be.
    """
    if isinstance(settings, LoaderSettings):
        return settings
    if settings == "auto":
        return None
    if settings != "tuned":
        raise SettingsError(
            "settings should be 'auto', 'tuned' or a LoaderSettings, but got "
            f"{settings!r}: options have names of their own, such as num_workers."
        )
    stored = load_result(result_path(dataset, batch_size, machine))
    return _NOTHING_STORED if stored is None else stored
