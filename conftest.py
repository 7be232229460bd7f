"""Runs the examples of README.md, the documentation and the docstrings as tests."""

import random
from collections.abc import Iterator
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from pathlib import Path

import numpy as np
import pytest
import torch
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

_ROOT = Path(__file__).parent


@pytest.fixture
def global_random_state() -> Iterator[None]:
    """Put the global generators of Python, NumPy and torch back as they were."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)


@pytest.fixture(scope="module")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Run the examples of a page in an empty folder beside the shipped `data`."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "data").symlink_to(_ROOT / "data", target_is_directory=True)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        # Examples leave nothing in the cache folder of who runs them.
        monkeypatch.setenv("FASTLOADER_CACHE_DIR", str(folder / "cache"))
        yield folder


_FIXTURES = ["global_random_state", "example_folder"]

_pages = Sybil(
    parsers=[
        PythonCodeBlockParser(doctest_optionflags=ELLIPSIS | NORMALIZE_WHITESPACE),
        SkipParser(),
    ],
    path=str(_ROOT),
    patterns=["README.md", "docs/*.md", "docs/**/*.md"],
    excludes=["docs/_build/**", "docs/notebooks/**"],  # building the documentation runs those
    fixtures=_FIXTURES,
)
_docstrings = Sybil(
    parsers=[DocTestParser(optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)],
    path=str(_ROOT / "src"),
    patterns=["**/*.py"],
    document_types={".py": PythonDocStringDocument},
    fixtures=_FIXTURES,
)
pytest_collect_file = (_pages + _docstrings).pytest()
