"""``python -m fastloader``: the same as the command ``fastloader``."""

import sys

from fastloader.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
