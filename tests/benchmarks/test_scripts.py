import ast
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("bench_*.py"))
PARTS = ("Question", "Held fixed", "Baseline", "Method", "Limit", "Losing cases", "Command")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_says_what_it_asks_and_how(script):
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""

    assert docstring.partition("\n")[0].endswith("?")
    assert [part for part in PARTS if f"\n{part}: " not in docstring] == []
    assert f"\nCommand: python benchmarks/{script.name}" in docstring
