"""A drop-in `torch.utils.data.DataLoader` that is fast without tuning."""

from fastloader import errors
from fastloader._loader import FastLoader
from fastloader._seeding import seed_everything
from fastloader._settings import LoaderSettings

__all__ = ["FastLoader", "LoaderSettings", "errors", "seed_everything"]


def __getattr__(name: str) -> str:
    # Read when asked for: looking up the installed version takes longer than the imports.
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("fastloader")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
