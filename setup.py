"""What is compiled; all else stands in pyproject.toml, where setuptools' way to say this is not settled.

All of it is optional: without a compiler NumPy and torch do the same, more slowly.
"""

from pathlib import Path

import numpy as np
from setuptools import Extension, setup

KERNELS = Path("src/fastloader/transforms/kernels")
SOURCES = Path("src/fastloader/sources")

setup(
    ext_modules=[
        Extension(
            "fastloader.transforms._kernels",
            sources=sorted(map(str, KERNELS.glob("*.c"))),
            depends=[str(KERNELS / "kernels.h")],
            include_dirs=[np.get_include()],
            # Products and sums are not to become one operation: NumPy has them as two.
            extra_compile_args=["-O3", "-ffp-contract=off"],
            optional=True,
        ),
        Extension(
            "fastloader.sources._raw_files",
            sources=[
                str(SOURCES / f"_{name}.c")
                for name in ("raw_files", "segments", "chunks", "lz4_blocks")
            ],
            depends=[str(SOURCES / "_raw_files.h")],
            optional=True,
        ),
        Extension(
            "fastloader.randomness._twisters",
            sources=["src/fastloader/randomness/_twisters.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "fastloader.threads._row_team",
            sources=["src/fastloader/threads/_row_team.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
    ]
)
