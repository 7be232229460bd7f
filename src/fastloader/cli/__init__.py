"""The command ``fastloader``: one module for each subcommand."""

from fastloader.cli._main import main

__all__ = ["main"]
